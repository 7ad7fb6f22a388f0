"""Calls drawn at random, with extreme integers and odd tensors."""

from random import Random

import torch
from torch import Tensor

from tests.fuzzing.calls import INT32, OPTIONS, Call
from transfuse.elements import ELEMENTS
from transfuse.problem import DTYPES
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum

EDGES = (0, 1, 2**15, 2**16, 2**22, *(2**n for n in range(30, 34)), 2**48, 2**62, 2**63, 2**64)
EXTREME = sorted(
    {edge + off for edge in EDGES for off in (-2, -1, 0, 1, 2)}
    | {-(2**31), -(2**32), -(2**63), -(2**64), 7919, 104729, 2147483629, 2305843009213693951}
)

described = ""


def describe(text: str) -> None:
    """Say what the call under way is, for the case that nothing can be said afterwards."""
    global described
    described = text


class Maker:
    """Draws one call."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.extremes = random.choice((0, 0, 0, 1, 1, 2, 4))
        """How many numbers are extreme, about."""
        self.unsigned = False
        """Whether numbers are C's size_t: the low 64 bits."""

    def number(self, low: int, high: int, odds: float = 0.12) -> int:
        if self.extremes and self.random.random() < odds:
            self.extremes -= 1
            value = self.random.choice(EXTREME)
            return value % 2**64 if self.unsigned else value
        return self.random.randint(low, high)

    def axes(self, rank: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.number(low, high) for _ in range(rank))

    def options(self, rank: int) -> dict[str, tuple[int, ...]]:
        limits = {"stride": (1, 4), "padding": (0, 1), "dilation": (1, 2), "output_padding": (0, 0)}
        found = {name: self.axes(rank, *limits[name]) for name in OPTIONS}
        if self.random.random() < 0.2:  # what a wide step adds, a wide padding takes away
            a, wide = self.random.randrange(rank), self.random.choice((2**15, 2**22, 2**30, INT32))
            for name, value in (
                (self.random.choice(("stride", "dilation")), wide),
                ("padding", self.random.choice((wide // 2, wide - 1, 0))),
            ):
                found[name] = (*found[name][:a], value, *found[name][a + 1 :])
        return found

    def call(self) -> Call:
        random = self.random
        rank, groups = random.choice((1, 2, 3)), random.choice((1, 1, 1, 2, 3))
        most = (9, 5, 3)[rank - 1]
        return Call(
            rank=rank,
            batch=random.choice((0, 1, 1, 2, 3)),
            in_channels=groups * random.choice((1, 2, 5, 17)),
            out_channels=groups * random.choice((1, 2, 4, 5, 18)),
            spatial=tuple(random.choice((1, random.randint(1, most))) for _ in range(rank)),
            kernel=tuple(random.randint(1, 3) for _ in range(rank)),
            groups=groups,
            dtype=random.choice(DTYPES),
            options=self.options(rank),
        )

    def pool(self, rank: int) -> Stage:
        stage = self.random.choice((max_pool, avg_pool))
        kernel = self.number(1, 3, 0.3)
        if self.extremes and self.random.random() < 0.2:  # a window of padding, mostly
            kernel = self.random.choice((64, 2**20, 2**30, INT32 - 1, 2**40))
            return stage(kernel, self.number(1, 3, 0.3), kernel // 2)
        size = kernel if self.random.random() < 0.8 else (kernel,) * rank
        return stage(
            size, self.random.choice((None, self.number(1, 3, 0.3))), self.number(0, 1, 0.1)
        )

    def stages(self, rank: int, channels: int) -> list[Stage]:
        def values() -> Tensor:
            return self.values((channels,))

        return self.random.choice(
            [
                list,
                lambda: [self.pool(rank)],
                lambda: [self.pool(rank), self.pool(rank)],
                lambda: [add(values()), self.pool(rank)],
                lambda: [scale(self.random.choice((-2, 0.5, 4))), sigmoid()],
                lambda: [clamp(-2, 3), softmax("space")],
                lambda: [softmax("channels"), scale(3.0)],
                lambda: [self.pool(rank), channel_sum("channels", keepdim=True)],
                lambda: [group_norm(self.number(1, 3, 0.4)), tanh()],
                lambda: [batch_norm(None, None, values(), values(), True), self.pool(rank)],
            ]
        )()

    def values(self, shape: tuple[int, ...], dtype: str = "fp64") -> Tensor:
        generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        found = torch.randint(-2, 3, shape, generator=generator)
        return found.to(ELEMENTS[dtype].dtype)

    def odd(self, values: Tensor) -> Tensor:
        """The same values as another kind of tensor."""
        kind = self.random.choice(("", "", "", "steps", "offset", "neg", "turned", "last"))
        if kind == "steps":
            return torch.stack((values, values), -1)[..., 1]
        if kind == "offset":
            return torch.cat((values.flatten()[:1], values.flatten()))[-values.numel() :].view_as(
                values
            )
        if kind == "neg" and values.is_floating_point():
            return torch._neg_view(-values)
        if kind == "turned" and values.dim() > 1:
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == "last" and values.dim() == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return values
