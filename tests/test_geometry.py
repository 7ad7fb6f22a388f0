"""Geometry by brute force: every (output, input, tap) with i*s = o + p - k*d, one by one."""

from collections.abc import Iterator
from itertools import accumulate, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from transfuse.geometry import Axis, integer, per_axis, pooled

KERNELS, STRIDES = range(1, 6), range(1, 5)


def axes(k: int, s: int) -> Iterator[Axis]:
    """Every axis of this kernel and stride with at least one output, over small sizes."""
    for n, d in product(range(1, 7), range(1, 4)):
        reach = (n - 1) * s + (k - 1) * d
        for op in range(max(s, d)):
            for p in range((reach + op) // 2 + 1):
                yield Axis(n, k, s, p, d, op)


def landings(axis: Axis) -> set[tuple[int, int, int]]:
    """Every (output, input, tap) inside the output, from the definition alone."""
    everything = product(range(axis.size), range(axis.n), range(axis.k))
    return {
        (o, i, k)
        for o, i, k in everything
        if i * axis.stride == o + axis.padding - k * axis.dilation
    }


each_kernel_and_stride = pytest.mark.parametrize(
    ("k", "s"), [pytest.param(k, s, id=f"k{k} s{s}") for k, s in product(KERNELS, STRIDES)]
)


@each_kernel_and_stride
def test_size_is_where_the_last_tap_lands(k: int, s: int) -> None:
    for axis in axes(k, s):
        last = max(i * s + t * axis.dilation for i, t in product(range(axis.n), range(k)))
        assert axis.size == last + 1 - 2 * axis.padding + axis.output_padding, axis


@each_kernel_and_stride
def test_phases_are_the_definition(k: int, s: int) -> None:
    for axis in axes(k, s):
        reached = [
            (phase.start + j * s, j + offset, tap)
            for phase in axis.phases()
            for j, (tap, offset) in product(range(phase.count), phase.taps)
            if 0 <= j + offset < axis.n
        ]
        assert len(reached) == len(set(reached)), axis
        assert set(reached) == landings(axis), axis


@each_kernel_and_stride
def test_phases_share_out_every_output_once(k: int, s: int) -> None:
    for axis in axes(k, s):
        for needed in (None, 1, axis.size // 2, axis.size):
            phases = axis.phases(needed)
            outputs = [phase.start + j * s for phase in phases for j in range(phase.count)]
            assert sorted(outputs) == list(range(axis.size if needed is None else needed)), axis
            assert all(phase.count for phase in phases), axis


@each_kernel_and_stride
def test_pairs_count_the_landings_in_every_leading_part(k: int, s: int) -> None:
    for axis in axes(k, s):
        per_output = [0] * axis.size
        for o, _, _ in landings(axis):
            per_output[o] += 1
        totals = [0, *accumulate(per_output)]
        assert [axis.pairs(needed) for needed in range(axis.size + 1)] == totals, axis
        assert axis.pairs() == totals[-1], axis


@pytest.mark.parametrize(
    ("axis", "empty"),
    [
        pytest.param(Axis(4, 1, stride=3), [1, 2], id="k1 s3: two of three outputs"),
        pytest.param(Axis(4, 2, stride=4, padding=1), [1, 2], id="k2 s4 p1: the middle two"),
        pytest.param(Axis(4, 3, stride=2, dilation=2), [1], id="k3 s2 d2: even taps only"),
        pytest.param(Axis(4, 3, stride=2), [], id="k3 s2: none"),
        pytest.param(Axis(1, 1, stride=3), [], id="n1 k1 s3: one output"),
    ],
)
def test_phases_without_taps(axis: Axis, empty: list[int]) -> None:
    assert [phase.start for phase in axis.phases() if not phase.taps] == empty


def outputs_or_none(n: int, kernel: int, stride: int, padding: int) -> int:
    """How many windows torch's max-pooling finds; it raises where there is none."""
    try:
        return F.max_pool1d(torch.zeros(1, 1, n), kernel, stride, padding).shape[-1]
    except RuntimeError:
        return 0


@pytest.mark.parametrize("kernel", range(1, 6))
def test_pooled_is_what_torch_finds(kernel: int) -> None:
    for n, s, p in product(range(1, 10), range(1, 5), range(kernel // 2 + 1)):
        assert pooled(n, kernel, s, p) == outputs_or_none(n, kernel, s, p), (n, kernel, s, p)


@pytest.mark.parametrize(
    ("value", "rank", "expected"),
    [
        (2, 3, (2, 2, 2)),
        ((2,), 2, (2, 2)),
        ([1, 2], 2, (1, 2)),
        ((1, 2, 3), 3, (1, 2, 3)),
        (np.int64(4), 1, (4,)),
        (torch.tensor(5), 2, (5, 5)),
        (-1, 1, (-1,)),
    ],
)
def test_per_axis(value: object, rank: int, expected: tuple[int, ...]) -> None:
    got = per_axis("stride", value, rank)
    assert got == expected
    assert all(type(number) is int for number in got)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            (1, 2),
            RuntimeError,
            r"stride to be one integer or 3 of them, one per axis, but got stride=\[1, 2\]",
        ),
        ((), RuntimeError, r"3 of them, one per axis, but got stride=\[\]"),
        (1.0, TypeError, r"stride must be an integer, not float \(1\.0\)"),
        ((1, 2, "3"), TypeError, r"stride must be an integer, not str \('3'\)"),
        (True, TypeError, r"stride must be an integer, not bool \(True\)"),
        (None, TypeError, r"stride must be an integer, not NoneType \(None\)"),
    ],
)
def test_per_axis_refuses(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        per_axis("stride", value, 3)


@pytest.mark.parametrize("value", [3, np.uint8(3), np.int32(3), torch.tensor(3)], ids=repr)
def test_integer(value: object) -> None:
    assert integer("groups", value) == 3
    assert type(integer("groups", value)) is int


@pytest.mark.parametrize("value", [3.0, np.float64(3), "3", True, None, [3]], ids=repr)
def test_integer_refuses(value: object) -> None:
    with pytest.raises(TypeError, match="groups must be an integer, not "):
        integer("groups", value)
