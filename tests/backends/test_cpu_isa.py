"""The instruction set that the core uses: the one asked for, or an error that names those here."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import transfuse
from transfuse import machine, settings
from transfuse.backends.cpu import library, weights


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, core: ctypes.CDLL) -> Iterator[Callable[[str], Any]]:
    """Loads the core as a fresh process does; afterwards it uses what it used before."""
    before = core.transfuse_isa()

    def loaded(isa: str) -> Any:
        monkeypatch.setenv("TRANSFUSE_ISA", isa)
        library.load.cache_clear()
        return library.load()

    yield loaded
    library.load.cache_clear()
    library.check(core, core.transfuse_use_isa(before))


def test_those_named_are_known(core: ctypes.CDLL) -> None:
    here = library.isas(core)
    assert here
    assert set(here) <= {"avx512", "avx2", "sse2", "neon", "generic"}


def test_the_one_asked_for_is_used(core: ctypes.CDLL, load: Callable[[str], Any]) -> None:
    for isa in library.isas(core):
        assert load(isa).transfuse_isa().decode() == isa
        assert settings.read().isa == isa
        assert machine.environment()["instructions"].startswith(f"{isa} (of ")


@pytest.mark.parametrize("isa", ["mmx", "AVX2", "neon sse2", "avx512 "])
def test_another_is_refused_with_those_there_are(
    isa: str, core: ctypes.CDLL, load: Callable[[str], Any]
) -> None:
    here = " ".join(library.isas(core))
    with pytest.raises(ValueError, match="TRANSFUSE_ISA") as refused:
        load(isa)
    said = f"TRANSFUSE_ISA={isa}: this machine does not run {isa}; it runs {here}"
    assert str(refused.value) == said
    with pytest.raises(ValueError, match="TRANSFUSE_ISA"):  # and at each call, not only the first
        library.load()
    assert machine.environment()["instructions"] == said


def test_one_that_a_cpu_of_another_kind_has_is_refused(
    core: ctypes.CDLL, load: Callable[[str], Any]
) -> None:
    other = next(isa for isa in ("neon", "sse2") if isa not in library.isas(core))
    with pytest.raises(ValueError, match=f"does not run {other}; it runs"):
        load(other)


def test_a_call_raises_rather_than_using_another() -> None:
    code = "import torch, transfuse\n"
    code += "transfuse.conv_transpose2d(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 2, 2))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRANSFUSE_ISA": "mmx"},
    )
    assert done.returncode == 1
    assert "ValueError: TRANSFUSE_ISA=mmx: this machine does not run mmx" in done.stderr


def test_env_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transfuse", "env", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRANSFUSE_ISA": "mmx"},
    )
    facts = json.loads(done.stdout)
    assert facts["settings"]["isa"] == "mmx"
    assert facts["instructions"].startswith("TRANSFUSE_ISA=mmx: this machine does not run mmx")


def test_weights_packed_for_one_are_not_anothers(
    core: ctypes.CDLL, load: Callable[[str], Any]
) -> None:
    """The same call under each in turn, twice: integers, so every one gives the same bits."""
    weights._kept.clear()
    x = torch.arange(-60.0, 60).view(1, 3, 5, 8) % 5
    w = torch.arange(3 * 33 * 9.0).view(3, 33, 3, 3) % 7 - 3
    right = torch.nn.functional.conv_transpose2d(x.double(), w.double(), stride=2).float()
    here = library.isas(core)
    for isa in 2 * here:
        load(isa)
        assert transfuse.conv_transpose2d(x, w, stride=2, backend="cpu").equal(right), isa
    assert len(weights._kept) == len(here)


def test_the_core_itself_keeps_the_one_in_use_when_it_refuses(core: ctypes.CDLL) -> None:
    before = core.transfuse_isa()
    status = core.transfuse_use_isa(b"mmx")
    with pytest.raises(RuntimeError, match="this machine does not run mmx; it runs "):
        library.check(core, status)
    assert core.transfuse_isa() == before
