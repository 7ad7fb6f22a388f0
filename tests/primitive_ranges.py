"""Primitives as sweeps over all a type holds, and how far results are from the exact ones."""

import torch
from torch import Tensor

from transfuse.maths.expr import ARITY, LOGICAL, Expr, call, name
from transfuse.maths.primitives import PRIMITIVES
from transfuse.sweeps import Each, Sweep, View

NAMES = ("x", "y", "z")
NUMBERS = [each for each in ARITY if each not in ("both", "either", "no")]
"""Primitives of numbers; the others are of conditions."""
OTHERS = (1.5, -0.25, 1e-40, 3e38, 0.0, -0.0, torch.inf, torch.nan)
DIGITS = {torch.float32: (24, -126), torch.float64: (53, -1022)}
"""Of a value, and the exponent of the smallest normal one."""


def every(dtype: torch.dtype, count: int) -> Tensor:
    """Values of both signs and every exponent, denormals, Inf, NaN and both zeros among them."""
    bits, least = DIGITS[dtype]
    integers = torch.int32 if dtype is torch.float32 else torch.int64
    top = torch.tensor(torch.inf, dtype=dtype).view(integers).item()
    magnitudes = torch.arange(0, int(top), int(top) // count).to(integers).view(dtype)
    smallest = 2.0 ** (least - bits + 1)
    special = (0.0, smallest, 2.0**least, 0.5, 1.0, torch.finfo(dtype).max, torch.inf, torch.nan)
    near_one = 1 + torch.linspace(-1e-3, 1e-3, count // 100, dtype=dtype)
    bent = torch.linspace(0, 120, count, dtype=dtype)
    found = torch.cat([magnitudes, torch.tensor(special, dtype=dtype), near_one, bent])
    return torch.cat([found, -found])


def arguments(primitive: str, dtype: torch.dtype, count: int) -> list[Tensor]:
    """As many tensors as a primitive takes: every value, beside some others."""
    x = every(dtype, count)
    if ARITY[primitive] == 1:
        return [x]
    x = x[:: len(OTHERS)].contiguous()
    y = torch.tensor(OTHERS, dtype=dtype).repeat_interleave(len(x))
    return [x.repeat(len(OTHERS)), y, -y.roll(len(x))][: ARITY[primitive]]


def expression(primitive: str) -> Expr:
    """A number from one primitive; its result where that is one."""
    given: list[Expr] = [name(each) for each in NAMES[: ARITY[primitive]]]
    if primitive == "where":
        given[0] = call("lt", given[0], given[1])
    found = call(primitive, *given)
    return call("where", found, 1.0, 0.0) if primitive in LOGICAL else found


def swept(primitive: str, given: list[Tensor]) -> tuple[Sweep, list[Tensor]]:
    """The sweep of a primitive and its slots, the last one for results."""
    n, dtype = len(given[0]), given[0].dtype
    views = [View(at, dtype, (n,), (1,)) for at in range(len(given) + 1)]
    values = tuple(zip(NAMES, views[:-1], strict=False))
    sweep = Each(views[-1], expression(primitive), values)
    return sweep, [*given, torch.full((n,), torch.nan, dtype=dtype)]


def exact(primitive: str, given: list[Tensor]) -> Tensor:
    """By torch, in float64."""
    wide = [each.double() for each in given]
    if primitive == "where":
        wide[0] = given[0] < given[1]  # type: ignore[assignment]
    return PRIMITIVES[primitive].torch(*wide).double()


def wrong(primitive: str, given: list[Tensor], found: Tensor, ulp: float, flushed: bool) -> str:
    """What is wrong with results; empty where nothing.

    ``ulp``: how far they may be from the exact ones, in units of the last place; zeros have the
    sign of these, but that of a minimum or maximum of two. ``flushed``: below the normal numbers
    they may be 0, or anything as small, and arguments may count as 0.
    """
    right = exact(primitive, given)
    ok = _right(right, found, ulp)
    if flushed:
        least = 2.0 ** DIGITS[found.dtype][1]
        ok |= (right.abs() < least) & (found.abs() < least)
        ok |= _right(exact(primitive, [_without(each, least) for each in given]), found, ulp)
    if primitive not in ("minimum", "maximum"):
        zeros = (right == 0) & (found == 0)
        ok &= ~zeros | (found.signbit() == right.signbit())
    if bool(ok.all()):
        return ""
    at = int((~ok).nonzero()[0])
    told = ", ".join(repr(each[at].item()) for each in given)
    return (
        f"{primitive}({told}) gave {found[at].item()!r} for {right[at].item()!r}; "
        f"{int((~ok).sum())} of {len(ok)}"
    )


def _right(right: Tensor, found: Tensor, ulp: float) -> Tensor:
    """Which results are within so many units of the last place of the exact ones."""
    bits, least = DIGITS[found.dtype]
    rounded = right.to(found.dtype)
    place = torch.exp2(torch.frexp(right).exponent.clamp(min=least + 1).double() - bits)
    error = (found.double() - right).abs() / place
    ok = (found == rounded) | (error <= ulp) | (found.isnan() & rounded.isnan())
    # What is within so many places of the largest value may be Inf, or that.
    largest = torch.finfo(found.dtype).max
    at_edge = (right.abs() > largest * (1 - ulp * 2.0**-bits)) & (found.abs() > largest * 0.99)
    return ok | (at_edge & (found.sign() == rounded.sign()))


def _without(given: Tensor, least: float) -> Tensor:
    """The same with zeros for numbers below the least, of their sign."""
    return torch.where(given.abs() < least, given * 0, given)
