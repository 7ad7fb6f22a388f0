"""The named operators have real signatures: for ``inspect``, for editors and for type checkers."""

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from transfuse import functions
from transfuse.chain import Chain
from transfuse.errors import DocumentError
from transfuse.operators import OPERATORS
from transfuse.operators.declaration import declare
from transfuse.problems import document
from transfuse.stages import conv_transpose

ROOT = Path(__file__).parents[2]
PLAIN = "conv-transpose-2d-square-input-asym-kernel"


@pytest.mark.parametrize("slug", OPERATORS)
def test_every_parameter_has_a_type_and_options_their_defaults(slug: str) -> None:
    found = inspect.signature(OPERATORS[slug])
    assert found.return_annotation is Tensor
    convolution = inspect.signature(functions.conv_transpose).parameters
    documented = {p.name: p for p in document(slug).parameters}
    for name, parameter in found.parameters.items():
        if name in convolution:  # the same name, so the same types and the same default
            assert parameter.annotation == convolution[name].annotation
            assert parameter.default == convolution[name].default
        else:
            assert parameter.default is inspect.Parameter.empty
            kind = documented[name]
            number = float if kind.type in ("float", "double") else int
            assert parameter.annotation is (Tensor if kind.pointer else number)


def test_one_signature_whole() -> None:
    kinds = {name: str(p) for name, p in inspect.signature(OPERATORS[PLAIN]).parameters.items()}
    assert list(kinds) == [
        *("x", "weight", "stride", "padding", "output_padding", "dilation", "groups"),
        *("output_size", "out", "backend", "precision"),
    ]
    assert kinds["weight"] == "weight: torch.Tensor"
    assert kinds["stride"] == "stride: int | collections.abc.Sequence[int] = 1"
    assert kinds["groups"] == "groups: int = 1"


@pytest.mark.parametrize("slug", OPERATORS)
def test_an_operator_is_copied_with_what_it_takes(slug: str) -> None:
    copy = pickle.loads(pickle.dumps(OPERATORS[slug]))
    assert inspect.signature(copy) == inspect.signature(OPERATORS[slug])
    assert copy.__doc__ == OPERATORS[slug].__doc__


def test_a_function_written_in_another_way_is_told_so() -> None:
    @declare(PLAIN, Chain(conv_transpose(2)), small="n1 ci1 co1 i2x2 k2x2 s1 p0")
    def less(x: Tensor, weight: Tensor, *, stride: int = 1) -> Tensor:
        return x

    with pytest.raises(
        DocumentError, match=rf"{PLAIN}: .* written as .*stride: int = 1\) .* groups: int = 1"
    ):
        less(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    with pytest.raises(DocumentError, match="its document asks for"):
        inspect.signature(less)


CALLS = """
import torch
import transfuse

x, w, b = torch.ones(1, 1, 4, 4, 4), torch.ones(1, 1, 5, 5, 5), torch.ones(1)
right = transfuse.conv_transpose3d_max_max_sum(x, w, b, stride=2, padding=((0, 1), (0, 0), (1, 1)))
same = transfuse.conv_transpose3d_max_max_sum(x, w, conv_bias=b, padding="same", precision="tf32")
reveal_type(right)
transfuse.conv_transpose3d_max_max_sum(x, w, b, strid=2)  # unknown: strid
transfuse.conv_transpose3d_max_max_sum(x, w)  # missing: conv_bias
transfuse.conv_transpose3d_max_max_sum(x, w, b, stride="2")  # type: stride
transfuse.conv_transpose3d_max_max_sum(x, w, b, 2)  # place: stride is given by name
transfuse.conv_transpose3d_max_max_sum(x, w, b, precision="fp8")  # type: precision
transfuse.conv_transpose3d_avgpool_clamp_softmax_multiply(
    x, w, b, pool_kernel=1.5, clamp_min=0, clamp_max=1  # type: pool_kernel
)
transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid(x, w, b, b)  # missing: scaling_factor
anything = transfuse.operator("conv-transpose3d-max-max-sum")(x, w, b, strid=2)
"""


def test_a_type_checker_sees_wrong_calls(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = re.findall(r"calls\.py:(\d+): error: (.*)", done.stdout)
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert [each.rpartition(".")[2] for each in revealed] == ["Tensor"], done.stdout + done.stderr
    lines = CALLS.splitlines()
    comments = {str(at): line.partition("# ")[2] for at, line in enumerate(lines, 1)}
    wanted = {at: comment for at, comment in comments.items() if comment}
    assert {at for at, _ in errors} == wanted.keys(), done.stdout
    for at, error in errors:
        kind, _, name = wanted[at].partition(": ")
        words = {
            "unknown": f'Unexpected keyword argument "{name}"',
            "missing": f'Missing {{}} argument "{name}"',
            "type": f'Argument "{name}"',
            "place": "Too many positional arguments",
        }[kind]
        assert words.partition("{}")[0] in error, error
        assert name in error or kind == "place"
