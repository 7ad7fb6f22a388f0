"""Sweeps whose axes are short and many, or so long that they take several boxes and blocks."""

import pytest
import torch
from torch import Tensor

from tests.sweeping import at, expected
from transfuse.backends.cpu.sweeps import prepare
from transfuse.maths.expr import parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View


def view(slots: list[Tensor], like: Tensor, offset: int = 0) -> View:
    """A view of a tensor in a slot of its own, small integers in it."""
    generator = torch.Generator().manual_seed(len(slots))
    span = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    memory = torch.randint(-3, 4, (offset + span,), generator=generator).to(like.dtype)
    slots.append(memory)
    return View(len(slots) - 1, like.dtype, tuple(like.shape), like.stride(), offset)


def exact(sweep: Sweep, slots: list[Tensor]) -> None:
    """The same bits as the definition, and for any number of threads."""
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    wanted, before = expected(sweep, slots), torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = [each.clone() for each in slots]
            prepare(sweep)([each.data_ptr() for each in found])
            for out, want in zip(outs, wanted, strict=True):
                assert torch.equal(at(out, found).double(), want.to(out.dtype).double())
    finally:
        torch.set_num_threads(before)


def laid(*dims: int, last: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that is only looked at; ``last``: its second axis innermost."""
    if not last:
        return torch.empty(dims, dtype=dtype, device="meta")
    n, c, *space = dims
    return torch.empty((n, *space, c), dtype=dtype, device="meta").movedim(-1, 1)


WINDOWS = [
    {"kernel": (3, 3, 3), "stride": (1, 1, 1), "padding": (1, 1, 1), "dilation": (1, 1, 1)},
    {"kernel": (2, 2, 2), "stride": (2, 2, 2), "padding": (0, 0, 0), "dilation": (1, 1, 1)},
    {"kernel": (2, 3, 2), "stride": (3, 1, 2), "padding": (1, 1, 0), "dilation": (2, 2, 3)},
]


@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows_over_several_boxes(
    isa: str, last: bool, window: dict[str, tuple[int, ...]]
) -> None:
    inputs, channels = (19, 18, 17), 19
    outputs = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(inputs, *window.values(), strict=True)
    )
    slots: list[Tensor] = []
    out = view(slots, laid(1, channels, *outputs, last=last))
    values = view(slots, laid(1, channels, *inputs, last=last))
    other = view(slots, laid(1, channels, 1, 1, 1).expand(1, channels, *inputs))
    named = (("x", values), ("y", other))
    exact(Slide(out, "sum", named, before=parse("x + y"), **window), slots)  # type: ignore[arg-type]
    exact(Slide(out, "max", named[:1], **window), slots)  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize(("inputs", "outputs"), [((5000,), (3571,)), ((31, 9), (7, 4))], ids=str)
def test_windows_of_different_sizes(
    isa: str, last: bool, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    slots: list[Tensor] = []
    out = view(slots, laid(3, 7, *outputs, last=last))
    values = view(slots, laid(3, 7, *inputs, last=last))
    exact(Slide(out, "max", (("x", values),), adaptive=True), slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
def test_the_sign_of_an_output_says_which(isa: str, dtype: torch.dtype, last: bool) -> None:
    slots: list[Tensor] = []
    out = view(slots, laid(2, 21, 40, 33, last=last, dtype=dtype))
    values = view(slots, laid(2, 21, 80, 66, last=last, dtype=dtype))
    sign = view(slots, laid(1, 21, 1, 1).expand(2, 21, 40, 33))
    options = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    exact(Slide(out, "sign", (("x", values),), others=(("sign", sign),), **options), slots)  # type: ignore[arg-type]


@pytest.mark.parametrize("dims", [(3, 5, 4, 6, 7, 3), (2, 40, 1, 9, 11, 13), (1, 1, 1, 3, 70, 50)])
@pytest.mark.parametrize("kept", [0, 3, 5])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (3, 0, 5, 1, 4, 2)], ids=str)
def test_folds_along_short_axes(
    isa: str, dims: tuple[int, ...], kept: int, order: tuple[int, ...]
) -> None:
    """Axes that do not merge, since a second view is the same along every other one of them."""
    slots: list[Tensor] = []
    out = view(slots, laid(*dims[:kept]))
    turned = laid(*(dims[axis] for axis in order))
    values = view(slots, turned.permute([order.index(axis) for axis in range(6)]))
    some = laid(*(n if axis % 2 else 1 for axis, n in enumerate(dims))).expand(dims)
    named = (("x", values), ("y", view(slots, some)))
    exact(Fold((out,), "sum", named, before=parse("x + y")), slots)
    exact(Fold((out,), "max", named[:1]), slots)


GROUPS = [
    (3, 7, 5, 9, 4),
    (1, 1, 40, 6, 5),
    (2, 70, 2, 3, 50),
    (5, 700, 3, 2, 2),
    (2, 9, 64, 40, 8),
]


@pytest.mark.parametrize("dims", GROUPS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_folds_over_groups_of_innermost_channels(
    isa: str, dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Over (channels of a group, height, width), a few channels beside those of the next group."""
    n, groups, channels, h, w = dims
    slots: list[Tensor] = []
    out, other = (view(slots, laid(n, groups, dtype=dtype)) for _ in range(2))
    x, y = (
        view(slots, laid(n, h, w, groups, channels, dtype=dtype).permute(0, 3, 4, 1, 2))
        for _ in range(2)
    )
    weight = view(slots, laid(1, groups, channels, 1, 1, dtype=dtype).expand(dims))
    named = (("x", x), ("y", y), ("weight", weight))
    more = {"after": parse("x * 2 + other"), "others": (("other", other),)}
    exact(Fold((out,), "max", named[:1]), slots)
    exact(Fold((out,), "sum", named, parse("where(x < y, weight, 0.0)"), **more), slots)  # type: ignore[arg-type]


@pytest.mark.parametrize("dims", GROUPS, ids=str)
def test_moments_over_groups_of_innermost_channels(isa: str, dims: tuple[int, ...]) -> None:
    """Channels that differ much more from one another than their values do."""
    n, groups, channels, h, w = dims
    values = torch.randn(n, h, w, groups, channels, generator=torch.Generator().manual_seed(1))
    values += 100 * torch.randn(groups, channels, generator=torch.Generator().manual_seed(2))
    like = values.permute(0, 3, 4, 1, 2)
    slots = [torch.zeros(n * groups), torch.zeros(n * groups), values.flatten()]
    outs = tuple(View(i, torch.float32, (n, groups), (groups, 1)) for i in range(2))
    x = View(2, torch.float32, tuple(like.shape), like.stride())
    prepare(Fold(outs, "moments", (("x", x),)))([each.data_ptr() for each in slots])
    var, mean = torch.var_mean(like.double(), (2, 3, 4), correction=0)
    torch.testing.assert_close(slots[0].double(), mean.flatten(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(slots[1].double(), var.flatten(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [(2, 3, 4, 2, 5, 2, 7, 2), (2, 1, 3, 2, 40, 2, 33, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_elements_that_change_their_order(
    isa: str, dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    """What was an axis of its own lies beside another one: a pixel shuffle."""
    slots: list[Tensor] = []
    out = view(slots, laid(*dims, dtype=dtype))
    order = (0, 1, 3, 5, 7, 2, 4, 6)
    source = laid(*(dims[axis] for axis in order), dtype=dtype)
    values = view(slots, source.permute([order.index(axis) for axis in range(8)]))
    some = laid(*(n if axis in (1, 6) else 1 for axis, n in enumerate(dims))).expand(dims)
    full = view(slots, laid(*dims))
    exact(Each(out, parse("x"), (("x", values),)), slots)
    exact(
        Each(out, parse("x + y - z"), (("x", values), ("y", view(slots, some)), ("z", full))), slots
    )


@pytest.mark.parametrize("hw", [(37, 41), (85, 4)], ids=str)
@pytest.mark.parametrize("per_sample", [False, True], ids=["channels", "channels of a sample"])
def test_one_row_again_and_again(isa: str, hw: tuple[int, int], per_sample: bool) -> None:
    """Values for each channel, met by blocks of 85 rows: those of another sample are others."""
    n, c = 3, 24
    slots: list[Tensor] = []
    like = laid(n, c, *hw, last=True)
    each = torch.empty(n if per_sample else 1, c, 1, 1, device="meta").expand(n, c, *hw)
    named = (("x", view(slots, like)), ("a", view(slots, each)), ("b", view(slots, each)))
    expr = parse("(x - a) * b + a")
    exact(Each(view(slots, like), expr, named), slots)
    sums = View(len(slots), torch.float32, (n, c), (c, 1))
    exact(Fold((sums,), "sum", named, expr), [*slots, torch.empty(n * c)])
    across = tuple(
        (name, View(v.slot, v.dtype, (c, n, *hw), (v.strides[1], v.strides[0], *v.strides[2:])))
        for name, v in named
    )
    total = View(len(slots), torch.float32, (c,), (1,))
    exact(Fold((total,), "sum", across, expr), [*slots, torch.empty(c)])
