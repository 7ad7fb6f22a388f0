"""Pooling: every window by a loop over its elements, floor mode, overlap, padding, reach."""

import math
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages import Kind, avg_pool, max_pool
from transfuse.stages.window import AvgPool, ExtremumPool, MaxPool, Window

GEOMETRIES = [
    # size, kernel, stride, padding: one entry per axis of the tensor
    ((7,), 2, None, 0),
    ((5,), 5, None, 0),
    ((9,), 3, 1, 1),
    ((8,), 2, 3, 1),
    ((5, 7), 2, None, 0),
    ((6, 5), (3, 2), (1, 2), (1, 0)),
    ((4, 4), 4, 1, 2),
    ((5, 4, 7), 2, None, 0),
    ((5, 4, 6), (1, 2, 3), (1, 1, 2), (0, 1, 1)),
]

each_geometry = pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [pytest.param(*row, id="i{} k{} s{} p{}".format(*row)) for row in GEOMETRIES],
)


def values(size: tuple[int, ...], channels: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn((2, channels, *size), dtype=torch.float64, generator=generator)


def windows(stage: Window, size: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], list]]:
    """Every output position with the places inside its window, from the definition."""
    axes = []
    for n, (kernel, stride, padding) in zip(size, stage.windows(len(size)), strict=True):
        starts = range(-padding, n + padding - kernel + 1, stride)
        axes.append([[at for at in range(a, a + kernel) if 0 <= at < n] for a in starts])
    for position in product(*(range(len(axis)) for axis in axes)):
        places = [axis[p] for axis, p in zip(axes, position, strict=True)]
        yield position, list(product(*places))


def pooled(stage: Window, x: Tensor, f: Callable[[list[float]], float]) -> Tensor:
    """``f`` on the list of elements of every window."""
    found = list(windows(stage, tuple(x.shape[2:])))
    y = x.new_empty(*x.shape[:2], *(edge + 1 for edge in found[-1][0]))
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for position, places in found:
            y[(n, c, *position)] = f([x[(n, c, *place)].item() for place in places])
    return y


def largest(elements: list[float]) -> float:
    return math.nan if any(map(math.isnan, elements)) else max(elements)


def smallest(elements: list[float]) -> float:
    return -largest([-element for element in elements])


@each_geometry
def test_max_pool(size, kernel, stride, padding) -> None:
    stage, x = max_pool(kernel, stride, padding), values(size)
    assert torch.equal(stage.apply(x, {}), pooled(stage, x, largest))


@each_geometry
def test_avg_pool_counts_padding_as_zeros(size, kernel, stride, padding) -> None:
    stage, x = avg_pool(kernel, stride, padding), values(size)
    cells = math.prod(k for k, _, _ in stage.windows(len(size)))
    expected = pooled(stage, x, lambda elements: math.fsum(elements) / cells)
    torch.testing.assert_close(stage.apply(x, {}), expected, rtol=0, atol=1e-15)


@each_geometry
def test_avg_pool_without_its_division_is_the_sum(size, kernel, stride, padding) -> None:
    stage, x = AvgPool(kernel, stride, padding, divisor_override=1), values(size)
    torch.testing.assert_close(stage.apply(x, {}), pooled(stage, x, math.fsum), rtol=0, atol=2e-14)


@each_geometry
def test_extremum_pool_follows_the_sign_of_its_channel(size, kernel, stride, padding) -> None:
    stage, x = ExtremumPool(kernel, stride, padding, sign="g"), values(size, channels=4)
    y = stage.apply(x, {"g": torch.tensor([2.0, -0.5, 0.0, -0.0], dtype=torch.float64)})
    assert torch.equal(y[:, [0, 2, 3]], pooled(stage, x[:, [0, 2, 3]], largest))
    assert torch.equal(y[:, [1]], pooled(stage, x[:, [1]], smallest))


@each_geometry
def test_nan_and_inf_win_where_they_should(size, kernel, stride, padding) -> None:
    x = values(size)
    for special in (math.nan, math.inf, -math.inf):
        x.view(-1)[int(x.numel() * 0.7)] = special
        for stage, f in {
            MaxPool(kernel, stride, padding): largest,
            ExtremumPool(kernel, stride, padding, sign="g"): smallest,
        }.items():
            y = stage.apply(x, {"g": -torch.ones(2, dtype=torch.float64)})
            assert torch.equal(y.nan_to_num(7.0), pooled(stage, x, f).nan_to_num(7.0))
            assert torch.equal(y.isnan(), pooled(stage, x, f).isnan())


@each_geometry
def test_shape_is_what_comes_out(size, kernel, stride, padding) -> None:
    stage = max_pool(kernel, stride, padding)
    assert stage.shape(Shape(2, 2, size)) == Shape(
        2, 2, tuple(stage.apply(values(size), {}).shape[2:])
    )


@pytest.mark.parametrize("kernel", range(1, 5), ids="k{}".format)
@pytest.mark.parametrize("stride", range(1, 5), ids="s{}".format)
def test_need_is_the_last_element_that_matters(kernel: int, stride: int) -> None:
    """A NaN in the last needed element shows; NaN in all that follow do not."""
    for padding, n in product(range(kernel // 2 + 1), range(1, 9)):
        if n + 2 * padding < kernel:
            continue
        stage = max_pool(kernel, stride, padding)
        (outputs,) = stage.shape(Shape(1, 1, (n,))).spatial
        for extent in range(1, outputs + 1):
            (need,) = stage.need((extent,), (n,))
            x = torch.zeros(1, 1, n)
            x[..., need:] = torch.nan
            assert not stage.apply(x, {})[..., :extent].isnan().any(), (n, padding, extent)
            x[..., need - 1] = torch.nan
            assert stage.apply(x, {})[..., extent - 1].isnan().all(), (n, padding, extent)


def test_need_is_per_axis() -> None:
    assert max_pool((2, 3), (2, 1), (0, 1)).need((2, 4), (9, 9)) == (4, 5)
    assert max_pool(2).need((2, 2, 2), (5, 5, 5)) == (4, 4, 4)


ILLEGAL = [
    (max_pool(0), "kernel and stride must be at least 1, but got kernel=0, stride=0"),
    (max_pool(2, 0), "kernel and stride must be at least 1, but got kernel=2, stride=0"),
    (avg_pool(3, 1, 2), "padding must be 0 to 1 (half of kernel=3), but got padding=2"),
    (avg_pool(3, 1, -1), "padding must be 0 to 1 (half of kernel=3), but got padding=-1"),
    (max_pool(6), "input of size [4, 9] is smaller than a window of 6"),
    (max_pool((1, 2, 3)), "kernel_size to be one integer or 2 of them"),
]


@pytest.mark.parametrize(
    ("stage", "message"), [pytest.param(*row, id=str(row[0])) for row in ILLEGAL]
)
def test_illegal_windows(stage: Window, message: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        stage.shape(Shape(1, 1, (4, 9)))
    assert message in str(caught.value)
    with pytest.raises((RuntimeError, TypeError)):
        stage.apply(torch.zeros(1, 1, 4, 9), {})


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("pool", [max_pool, avg_pool])
def test_windows_that_torch_refuses(pool: Callable[..., Window], rank: int) -> None:
    """The same ones, also those that are larger than the input but not than its padding."""
    for kernel, n in product(range(1, 6), range(1, 6)):
        for padding in range(kernel // 2 + 1):
            stage, sizes = pool(kernel, 1, padding), (6,) * (rank - 1) + (n,)
            try:
                theirs = tuple(stage.apply(torch.zeros(1, 1, *sizes), {}).shape)
            except RuntimeError:
                with pytest.raises(RuntimeError, match=f"smaller than a window of {kernel}"):
                    stage.shape(Shape(1, 1, sizes))
            else:
                assert stage.shape(Shape(1, 1, sizes)).dims == theirs


@pytest.mark.parametrize(
    ("stage", "text", "tiles"),
    [
        (max_pool(2), "max_pool(2)", True),
        (max_pool(2, 2), "max_pool(2, stride 2)", True),
        (max_pool(3, 1, 1), "max_pool(3, stride 1, padding 1)", False),
        (max_pool(2, padding=1), "max_pool(2, padding 1)", False),
        (max_pool((2, 3)), "max_pool(2x3)", True),
        (avg_pool("pool_kernel"), "avg_pool(pool_kernel)", True),
        (AvgPool(2, divisor_override=1), "avg_pool(2, divisor_override=1)", True),
        (ExtremumPool(2, sign="g"), "extremum_pool(2 by sign of g)", True),
    ],
    ids=str,
)
def test_prints(stage: Window, text: str, tiles: bool) -> None:
    assert str(stage) == text
    assert stage.tiles == tiles
    assert stage.kind is Kind.WINDOW


def test_names() -> None:
    assert avg_pool("k").operands == ("k",)
    assert avg_pool("k").bind({"k": 3}) == avg_pool(3)
    assert ExtremumPool(2, sign="g").operands == ("g",)
    sign, env = torch.ones(2), {}
    assert ExtremumPool(2, sign=sign).lift("pool1", env) == ExtremumPool(2, sign="pool1.sign")
    assert env == {"pool1.sign": sign}
    with pytest.raises(TypeError, match="avg_pool kernel_size must be an integer, not str"):
        avg_pool("k").shape(Shape(1, 1, (4,)))


def test_only_max_pool_keeps_integers_exact() -> None:
    assert max_pool(2).exact
    assert not avg_pool(3).exact
