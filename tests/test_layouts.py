"""Any strides in, any strides out: the bits of contiguous copies, and only ``out`` changes.

Small integers in float32: every sum is exact, so nothing but a wrong address can change a bit.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.stages import add, clamp, max_pool, scale, sum

SENTINEL = -77.0
CONVOLUTIONS = {
    1: (transfuse.conv_transpose1d, F.conv_transpose1d),
    2: (transfuse.conv_transpose2d, F.conv_transpose2d),
    3: (transfuse.conv_transpose3d, F.conv_transpose3d),
}
SPATIAL = (5, 4, 6)
KERNEL = (3, 2, 3)


def integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-3, 4, shape, generator=generator).float()


def tensors(rank: int) -> dict[str, Tensor]:
    """Input, kernel, bias and two more operands of one value per channel."""
    return {
        "x": integers(2, 4, *SPATIAL[:rank]),
        "weight": integers(4, 3, *KERNEL[:rank]),
        "bias": integers(3),
        "term": integers(3),
        "factor": integers(3),
    }


def convolve(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    return transfuse.conv_transpose(x, weight, bias, stride=2, padding=1, output_padding=1, out=out)


def chain(x: Tensor, weight: Tensor, bias: Tensor, term: Tensor, factor: Tensor) -> Tensor:
    then = [add(term), clamp(-20, 30), max_pool(2), scale(factor), sum("channels", keepdim=True)]
    return transfuse.conv_transpose(x, weight, bias, stride=2, padding=1, then=then)


def in_buffer(shape: torch.Size) -> Tensor:
    """A view of this shape, every second element of a buffer of sentinels along each axis."""
    buffer = torch.full([2 * size + 3 for size in shape], SENTINEL)
    return buffer[tuple(slice(2, 2 * size + 2, 2) for size in shape)]


def stepped(t: Tensor) -> Tensor:
    return in_buffer(t.shape).copy_(t)


# Tensors of one axis have no order of axes to change, so these two give them steps instead.


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else stepped(t)


def channels_last(t: Tensor) -> Tensor:
    return t.movedim(1, -1).contiguous().movedim(-1, 1) if t.dim() > 1 else stepped(t)


def offset(t: Tensor) -> Tensor:
    return torch.full([t.numel() + 9], SENTINEL)[7:-2].view(t.shape).copy_(t)


def negated(t: Tensor) -> Tensor:
    return torch._neg_view(-t)


def expanded(t: Tensor) -> Tensor:
    """The first of the last axis, everywhere: stride 0."""
    return t[..., :1].expand(t.shape)


def constant(t: Tensor) -> Tensor:
    """One element in memory."""
    return torch.tensor(2.0).expand(t.shape)


LAYOUTS = [stepped, offset, transposed, channels_last, negated, expanded, constant]


def is_plain(t: Tensor) -> bool:
    return t.is_contiguous() and t.storage_offset() == 0 and not t.is_neg()


def plain(t: Tensor) -> Tensor:
    return t.resolve_neg().clone(memory_format=torch.contiguous_format)


def each(name: str, value: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, value, ids=lambda v: getattr(v, "__name__", str(v)))


@each("rank", (1, 2, 3))
@each("layout", LAYOUTS)
@each("which", ("x", "weight", "operands", "all"))
def test_any_layout_gives_the_bits_of_a_contiguous_copy(
    which: str, layout: Callable[[Tensor], Tensor], rank: int
) -> None:
    operands = ("bias", "term", "factor")
    names = {"operands": operands, "all": ("x", "weight", *operands)}.get(which, (which,))
    given = tensors(rank)
    given |= {name: layout(given[name]) for name in names}
    assert not any(is_plain(given[name]) for name in names)
    copies = {name: plain(t) for name, t in given.items()}
    assert chain(**given).equal(chain(**copies))
    assert all(given[name].equal(copies[name]) for name in given)


@each("layout", [stepped, offset, negated, expanded])
@each("slug", [slug for slug, operator in OPERATORS.items() if operator.operands])
def test_any_layout_of_an_operators_operands(
    slug: str, layout: Callable[[Tensor], Tensor], given: Callable[..., Any]
) -> None:
    """Only the operands differ, so that the bits are the same also where sums are rounded."""
    one = given(slug, "small")
    operands = [layout(tensor) for tensor in one.operands.values()]
    expected = one.function(one.x, one.weight, *map(plain, operands))
    assert one.function(one.x, one.weight, *operands).equal(expected)


@each("rank", (1, 2, 3))
@each("layout", [stepped, offset, transposed, channels_last, negated])
def test_out_of_any_layout(layout: Callable[[Tensor], Tensor], rank: int) -> None:
    x, weight, bias, *_ = tensors(rank).values()
    expected = convolve(x, weight, bias)
    out = layout(torch.full_like(expected, torch.nan))
    strides = out.stride()
    assert not is_plain(out)
    assert convolve(x, weight, bias, out=out) is out
    assert out.stride() == strides
    assert out.equal(expected)


@each("rank", (1, 2, 3))
@each("batch", (slice(None), 0))
def test_neighbours_of_out_stay(batch: slice | int, rank: int) -> None:
    x, weight, bias, *_ = tensors(rank).values()
    expected = convolve(x[batch], weight, bias)
    out = in_buffer(expected.shape)
    convolve(x[batch], weight, bias, out=out)
    assert out.equal(expected)
    buffer = out.as_strided([out.untyped_storage().size() // 4], [1], 0)
    assert (buffer != SENTINEL).sum() == (expected != SENTINEL).sum()
    out.fill_(SENTINEL)
    assert (buffer == SENTINEL).all()


@each("rank", (1, 2, 3))
def test_out_between_the_elements_of_the_inputs(rank: int) -> None:
    """Input, kernel and output take turns in one buffer: no element is shared, so it is legal."""
    x, weight, bias, *_ = tensors(rank).values()
    expected = convolve(x, weight, bias)
    buffer = torch.full([3 * expected.numel()], SENTINEL)
    turns = {}
    for i, like in enumerate((x, weight, expected)):
        turns[i] = buffer[i : i + 3 * like.numel() : 3].view(like.shape)
    turns[0].copy_(x)
    turns[1].copy_(weight)
    convolve(turns[0], turns[1], bias, out=turns[2])
    assert turns[2].equal(expected)
    assert turns[0].equal(x)
    assert turns[1].equal(weight)


def test_out_beside_the_input_in_one_concatenation() -> None:
    """A skip connection: the output goes into the channels after those of the input."""
    both = torch.full((2, 7, 5, 4), SENTINEL)
    x, out = both[:, :4], both[:, 4:]
    given = tensors(2)
    x.copy_(given["x"])
    transfuse.conv_transpose2d(x, given["weight"][..., :1], padding=(1, 0), out=out)
    assert out.equal(F.conv_transpose2d(given["x"], given["weight"][..., :1], padding=(1, 0)))
    assert x.equal(given["x"])


@each("rank", (1, 2, 3))
def test_unbatched_is_a_batch_of_one(rank: int) -> None:
    x, *others = tensors(rank).values()
    assert chain(x[0], *others).equal(chain(x[:1], *others)[0])
    expected = convolve(x[:1], *others[:2])[0]
    out = torch.full_like(expected, torch.nan)
    assert convolve(x[0], *others[:2], out=out) is out
    assert out.equal(expected)


LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@each("rank", (2, 3))
@each("x_last", (False, True))
@each("weight_last", (False, True))
def test_eager_has_torchs_memory_format(weight_last: bool, x_last: bool, rank: int) -> None:
    ours, theirs = CONVOLUTIONS[rank]
    x, weight, *_ = tensors(rank).values()
    x = x.to(memory_format=LAST[rank]) if x_last else x
    weight = weight.to(memory_format=LAST[rank]) if weight_last else weight
    for element in ELEMENTS.values():
        y = ours(x.to(element.dtype), weight.to(element.dtype), stride=2, backend="eager")
        # 16-bit results have the format of the float32 in which they are computed.
        like = theirs(x.to(element.compute), weight.to(element.compute), stride=2)
        assert y.stride() == like.stride()


@each("rank", (2, 3))
@each("x_last", (False, True))
def test_the_core_keeps_the_inputs_memory_format(x_last: bool, rank: int) -> None:
    ours, _ = CONVOLUTIONS[rank]
    x, weight, *_ = tensors(rank).values()
    x = x.to(memory_format=LAST[rank]) if x_last else x
    y = ours(x, weight, stride=2, backend="cpu")
    assert y.is_contiguous(memory_format=LAST[rank] if x_last else torch.contiguous_format)
