"""Small calls of everything public, each beside the torch calls that it replaces."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import fills
from transfuse.bench.peers.base import Work
from transfuse.bench.peers.torch_eager import CONV, as_written
from transfuse.bench.precision import PRECISIONS
from transfuse.operators import OPERATORS
from transfuse.stages import group_norm, max_pool, relu, scale, sigmoid, tanh

OURS = {
    1: transfuse.conv_transpose1d,
    2: transfuse.conv_transpose2d,
    3: transfuse.conv_transpose3d,
}


@dataclass(frozen=True)
class Small:
    """One call, and torch's; ``tensors`` are what both read."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    tensors: tuple[Tensor, ...]


def plain(device: str, dtype: torch.dtype = torch.float32) -> Iterator[Small]:
    """The convolution alone, with and without a bias."""
    for rank in (1, 2, 3):
        x = torch.randn(1, 4, *(8,) * rank, device=device, dtype=dtype)
        w = torch.randn(4, 4, *(4,) * rank, device=device, dtype=dtype)
        b = torch.randn(4, device=device, dtype=dtype)
        for name, tensors in (("plain", (x, w)), ("bias", (x, w, b))):
            yield Small(
                f"{name} {rank}d",
                partial(OURS[rank], *tensors, stride=2),
                partial(CONV[rank], *tensors, stride=2),
                tensors,
            )


def chains(device: str, dtype: torch.dtype = torch.float32) -> Iterator[Small]:
    """Three stages, made anew for each call."""
    for rank, max_pool_of in ((1, F.max_pool1d), (2, F.max_pool2d), (3, F.max_pool3d)):
        x = torch.randn(1, 4, *(8,) * rank, device=device, dtype=dtype)
        w = torch.randn(4, 4, *(4,) * rank, device=device, dtype=dtype)
        b, g, h = torch.randn(3, 4, device=device, dtype=dtype)

        conv = partial(CONV[rank], x, w, b, stride=2)
        ours = partial(transfuse.conv_transpose, x, w, b, stride=2)
        yield Small(
            f"sigmoid, scale, tanh {rank}d",
            lambda ours=ours: ours(then=[sigmoid(), scale(2.0), tanh()]),
            lambda conv=conv: torch.tanh(torch.sigmoid(conv()) * 2.0),
            (x, w, b),
        )
        yield Small(
            f"relu, max_pool, sigmoid {rank}d",
            lambda ours=ours: ours(then=[relu(), max_pool(2), sigmoid()]),
            lambda conv=conv, pool=max_pool_of: torch.sigmoid(pool(torch.relu(conv()), 2)),
            (x, w, b),
        )
        yield Small(
            f"sigmoid, group_norm, tanh {rank}d",
            lambda f=ours, g=g, h=h: f(then=[sigmoid(), group_norm(2, g, h), tanh()]),
            lambda conv=conv, g=g, h=h: torch.tanh(F.group_norm(torch.sigmoid(conv()), 2, g, h)),
            (x, w, b, g, h),
        )


def five(device: str, arithmetic: str = "fp32") -> Iterator[Small]:
    """The operators in their small cases."""
    for slug, operator in OPERATORS.items():
        case = operator.case("small").on(arithmetic, device)
        chain, problem = operator.bound(case), case.problem
        x, w, operands = fills.real(chain, problem, 0)
        given = {each: getattr(problem, each) for each in operator.options} | case.scalars
        if operator.grouped:
            given["groups"] = problem.groups
        theirs = as_written(Work(chain, problem, PRECISIONS[arithmetic], x, w, operands))

        tensors = (x, w, *operands.values())
        yield Small(slug, partial(operator, *tensors, **given), partial(theirs, x), tensors)
