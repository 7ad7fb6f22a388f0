"""What is the same along some axes is computed once for all of them, and the bits stay."""

import pytest
import torch
from torch import Tensor

from transfuse.backends.cpu import hoisting, sweeps
from transfuse.maths.expr import parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

SIZES = (4, 16, 24, 33)
NAMES = ("x", "row", "channel", "sample")


def tensors(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    dims = (SIZES, (4, 16, 24, 1), (16, 1, 1), (4, 1, 1, 1))
    return [torch.rand(each, generator=generator, dtype=torch.float64).to(dtype) for each in dims]


def views(given: list[Tensor], sizes: tuple[int, ...] = SIZES) -> tuple[tuple[str, View], ...]:
    return tuple(
        (name, View(at, each.dtype, sizes, each.expand(sizes).stride()))
        for at, (name, each) in enumerate(zip(NAMES, given, strict=True))
    )


def view(at: int, tensor: Tensor) -> View:
    return View(at, tensor.dtype, tuple(tensor.shape), tensor.stride())


def result(sweep: Sweep, given: list[Tensor], out: Tensor) -> Tensor:
    out.fill_(torch.nan)
    sweeps.prepare(sweep)([each.data_ptr() for each in (*given, out)])
    return out.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x * rsqrt(row + 0.1) * channel", ["rsqrt(row + 0.1)"]),
        ("x - log(sample) - exp(row)", ["exp(row)", "log(sample)"]),
        ("x * (1 / sample + sqrt(channel))", ["1.0 / sample + sqrt(channel)"]),
        ("exp(sample) * x + exp(sample)", ["exp(sample)"]),
        ("where(sqrt(row) < 0.5, x, exp(x))", ["sqrt(row)"]),
        ("exp(row)", ["exp(row)"]),
        ("exp(x) / row + channel * 2", []),
    ],
)
def test_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, text: str, parts: list[str], dtype: torch.dtype
) -> None:
    given = tensors(dtype)
    out = torch.empty(SIZES, dtype=dtype)
    folds = torch.empty(SIZES[:2], dtype=dtype)
    pooled = torch.empty(4, 16, 12, 16, dtype=dtype)
    each = Each(view(4, out), parse(text), views(given))
    fold = Fold((view(4, folds),), "sum", views(given), parse(text))
    slide = Slide(
        view(4, pooled), "max", views(given), (2, 2), (2, 2), (0, 0), (1, 1), before=parse(text)
    )
    sweep: Sweep
    for sweep, to in ((each, out), (fold, folds), (slide, pooled)):
        _, before, _ = hoisting.hoisted(sweep)
        assert sorted(str(part.expr) for part in before) == sorted(parts)
        found = result(sweep, given, to)
        with monkeypatch.context() as patch:
            patch.setattr(hoisting, "MANY_VALUES", 2**40)
            assert torch.equal(found, result(sweep, given, to))


def test_small_sweeps_stay_one() -> None:
    x, row, *others = tensors(torch.float32)
    given = [x[:, :, :2], row[:, :, :2], *others]
    out = torch.empty(given[0].shape)
    values = views(given, tuple(out.shape))
    sweep = Each(view(4, out), parse("x * rsqrt(row)"), values)
    assert hoisting.hoisted(sweep) == (sweep, (), 0)


@pytest.mark.parametrize("per_group", [4, 8])
def test_a_value_for_each_channel_where_groups_would_make_short_rows(
    monkeypatch: pytest.MonkeyPatch, per_group: int
) -> None:
    """Channels innermost: without the parts taken out a row is the channels of one group."""
    generator = torch.Generator().manual_seed(0)
    n, groups, h, w = 2, 6, 24, 35
    sizes = (n, groups, per_group, h, w)
    x, out = (torch.rand(n, h, w, groups * per_group, generator=generator) for _ in range(2))
    mean, gain = torch.rand(n, groups), torch.rand(groups * per_group)
    step = groups * per_group
    large = (h * w * step, per_group, 1, w * step, step)
    named = (
        ("x", View(0, x.dtype, sizes, large)),
        ("mean", View(1, x.dtype, sizes, (groups, 1, 0, 0, 0))),
        ("gain", View(2, x.dtype, sizes, (0, per_group, 1, 0, 0))),
    )
    sums = torch.empty(n, groups, per_group)
    expr = parse("(x - mean * 2.0) * gain")
    each = Each(View(3, x.dtype, sizes, large), expr, named)
    fold = Fold((View(3, x.dtype, sizes[:3], sums.stride()),), "sum", named, expr)
    for sweep, to in ((each, out), (fold, sums)):
        rest, before, _ = hoisting.hoisted(sweep)
        assert [str(part.expr) for part in before] == ["mean * 2.0"]
        ready = sweeps._ready(rest)
        last = ready._sweep.kept - 1  # the row
        assert ready._sweep.sizes[last] == groups * per_group
        found = result(sweep, [x, mean, gain], to)
        with monkeypatch.context() as patch:
            patch.setattr(hoisting, "SHORT", 0)
            assert hoisting.hoisted(sweep) == (sweep, (), 0)
            expected = result(sweep, [x, mean, gain], to)
        if sweep is each:
            assert torch.equal(found, expected)
        else:  # other rows, and so other sums in the compute type before double takes over
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
