"""A program that runs only if its weights still are those that were packed."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import transfuse
from transfuse.backends.cpu import library, weights


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The arguments with which the core was asked to."""
    core = library.load()
    if core is None:
        pytest.skip("the compiled core is not installed")
    asked: list[tuple[Any, ...]] = []
    run = core.transfuse_run_unless_changed

    def watched(*given: Any) -> int:
        asked.append(given)
        return int(run(*given))

    core.transfuse_run_unless_changed = watched
    weights._kept.clear()
    transfuse.front._checked.clear()
    yield asked
    core.transfuse_run_unless_changed = run
    transfuse.front._checked.clear()


def called(count: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w = torch.randn(1, 4, 8), torch.randn(4, 4, 4)
    for _ in range(count):
        y = transfuse.conv_transpose1d(x, w, stride=2, backend="cpu")
    return x, w, y


def test_repeated_calls_are_run_so(caught: list[tuple[Any, ...]]) -> None:
    called(5)
    assert len(caught) == 3, "all but the first, and the one that finds what it packed"


def test_other_weights_run_nothing(caught: list[tuple[Any, ...]]) -> None:
    held = called()  # the input, too: the program reads it
    _, w, y = held
    program, threads, data, size, digest = caught[-1]
    core = library.load()
    assert core is not None
    assert data == w.data_ptr()
    assert size == w.nbytes
    before = y.clone()
    y.fill_(torch.nan)
    assert core.transfuse_run_unless_changed(program, threads, data, size, digest) == 0
    assert y.equal(before)
    y.fill_(torch.nan)
    other = library.Digest(1, 2)
    asked = (program, threads, data, size, ctypes.addressof(other))
    assert core.transfuse_run_unless_changed(*asked) == library.CHANGED
    assert y.isnan().all()
    w.data[0, 0, 0] += 1
    assert core.transfuse_run_unless_changed(program, threads, data, size, digest) == 2
    assert y.isnan().all()


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, None, "program"),
        (1, 0, "threads must be at least 1, but got 0"),
        (2, None, "values is a null pointer"),
        (3, -1, "count must be 0 to"),
        (4, None, "digest is a null pointer"),
    ],
    ids=["program", "threads", "data", "bytes", "digest"],
)
def test_what_it_refuses(
    at: int, value: int | None, says: str, caught: list[tuple[Any, ...]]
) -> None:
    held = called()
    y = held[-1]
    asked = list(caught[-1])
    asked[at] = value
    core = library.load()
    assert core is not None
    y.fill_(torch.nan)
    assert core.transfuse_run_unless_changed(*asked) == 1
    assert says in core.transfuse_message().decode()
    assert y.isnan().all()
