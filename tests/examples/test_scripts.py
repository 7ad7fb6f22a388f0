"""The scripts in ``examples/`` run, and print what they say."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "speed_up_a_model.py": "5 of 5 transposed convolutions fused",
    "train_wgan_gp.py": "step 2: critic ",
    "vocoder_of_any_length.py": "40 frames, 10240 samples, largest difference ",
}


def test_each_script_is_known_here():
    assert sorted(PRINTED) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PRINTED)
def test_a_script(name, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert PRINTED[name] in capsys.readouterr().out
