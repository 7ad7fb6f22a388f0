"""Sweeps as C passes them: whatever is in them, the core says what is wrong and goes on."""

import ctypes
from typing import Any

import pytest
import torch

from transfuse.backends.cpu import library


class Raw:
    """A sweep as the core sees it: the largest of each of two rows of three values."""

    def __init__(self, **fields: Any) -> None:
        self.memory = torch.zeros(64)
        strides = library.Axes(3, 1, 3, 1, 1)
        self.view = library.View(0, self.memory.data_ptr(), strides)
        self.views = (library.View * 1)(self.view)
        values: dict[str, Any] = {
            "kind": library.KINDS.index("fold"),
            "folding": library.FOLDINGS.index("max"),
            "kept": 1,
            "folded": 1,
            "sizes": library.Axes(2, 3, 1, 1, 1, 1, 1, 1, 1),
            "values_count": 1,
            "values": self.views,
            "outs": (library.View * 2)(self.view),
        }
        self.sweep = library.Sweep(**(values | fields))


ONE = library.Sizes(1, 1, 1)
WINDOWS = {"folded": 0, "kept": 5, "inputs": ONE, "kernel": ONE, "stride": ONE, "dilation": ONE}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": 3}, "kind of a sweep must be 0 to 2, but got 3"),
        ({"folding": -1}, "folding of a sweep must be"),
        ({"folding": 8}, "folding 8 is none of a sweep of kind 1"),
        ({"kept": 0}, "axes of a sweep must be 1 to 9, but got 0"),
        ({"folded": 9}, "axes of a sweep that are folded must be 1 to 8, but got 9"),
        ({"sizes": library.Axes(0, 3)}, "size of a sweep must be 1 to"),
        ({"sizes": library.Axes(2**40, 2**40)}, "has more than 2\\^48 elements"),
        ({"joined": 2}, "joined results of a sweep must be 0 to 0, but got 2"),
        ({"across": 1, "joined": 65}, "joined results of a sweep must be 0 to 64, but got 65"),
        ({"across": 1, "joined": 3}, "2 results of a sweep are not whole times 3"),
        ({"values_count": 256}, "values of a sweep must be 0 to 255"),
        ({"values_count": 0}, "values of a sweep must be 1 to 1, but got 0"),
        ({"values": None}, "values of a sweep is a null pointer"),
        ({"others_count": 1}, "others of a sweep is a null pointer"),
        ({"outs": (library.View * 2)()}, "output of a sweep is a null pointer"),
        ({"kind": 0, "kept": 2, "folded": 0}, "code of a sweep is a null pointer"),
        ({"kind": 2, "folded": 0}, "axes of a slide must be 5 to 5, but got 1"),
        (
            {"kind": 2, **WINDOWS, "kernel": library.Sizes(1, 0, 1)},
            "kernel of a slide must be 1 to",
        ),
        ({"kind": 2, **WINDOWS, "stride": library.Sizes(1, 1, 2**31)}, "stride of a slide must be"),
        ({"kind": 2, **WINDOWS, "inputs": library.Sizes(0, 1, 1)}, "inputs of a slide must be"),
        (
            {"kind": 2, **WINDOWS, "sizes": library.Axes(1, 1, 2, 1, 1)},
            "a slide has 2 windows along",
        ),
        ({"kind": 2, **WINDOWS, "folding": 3}, "folding 3 is none of a sweep of kind 2"),
    ],
)
def test_what_the_core_refuses(core: ctypes.CDLL, fields: dict[str, Any], says: str) -> None:
    raw = Raw(**fields)
    with pytest.raises(RuntimeError, match=says):
        library.check(core, core.transfuse_sweep_run(raw.sweep, 1))
    assert not bool(raw.memory.any())


def test_a_view_out_of_range_is_refused(core: ctypes.CDLL) -> None:
    assert core.transfuse_sweep_run(Raw().sweep, 1) == 0
    assert core.transfuse_sweep_run(None, 1) == 1
    assert core.transfuse_message() == b"sweep is a null pointer"
    assert core.transfuse_sweep_run(Raw().sweep, 0) == 1
    for field, value, says in (
        ("element", 4, "element of a view must be 0 to 3, but got 4"),
        ("strides", library.Axes(-1, 1), "strides of a view must be 0 to"),
        ("strides", library.Axes(2**60, 1), "strides of a view lead beyond 2"),
    ):
        raw = Raw()
        setattr(raw.views[0], field, value)
        with pytest.raises(RuntimeError, match=says):
            library.check(core, core.transfuse_sweep_run(raw.sweep, 1))
