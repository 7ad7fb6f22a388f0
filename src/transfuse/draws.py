"""Chains drawn by seed: any stages of the vocabulary, in any order, on layers like models have.

Tests compare them with the oracle, the benchmark times them. A draw has no stage that jumps, such
as ``hardshrink``: a value next to the jump may fall on either side, and no bound on errors holds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.problem import Problem, Shape
from transfuse.stages import Stage

MOST_STAGES = 8
"""Of a chain, the convolution among them."""


@dataclass
class Tensors:
    """The names of a chain's tensors, each with its shape."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def named(self, *dims: int) -> str:
        name = f"t{len(self.shapes)}"
        self.shapes[name] = dims
        return name

    def channel(self, shape: Shape) -> str:
        return self.named(shape.c)

    def full(self, shape: Shape) -> str:
        return self.named(*shape.dims)


@dataclass(frozen=True)
class Size:
    """How large a drawn problem is: channels, and inputs along an axis by the number of axes."""

    batch: tuple[int, ...]
    channels: tuple[int, ...]
    inputs: dict[int, tuple[int, int]]
    most: int  # elements of the convolution's output


SMALL = Size((1, 2, 3), (4, 8, 12), {1: (3, 24), 2: (3, 9), 3: (2, 5)}, 20_000)
LARGE = Size((2, 4, 8), (16, 32, 64), {1: (512, 4096), 2: (24, 64), 3: (8, 14)}, 6_000_000)
HUGE = Size((16, 32, 64), (32, 64, 128), {1: (4096, 16384), 2: (48, 128), 3: (14, 28)}, 150_000_000)


def drawn(
    seed: int, size: Size = SMALL, dtype: str = "fp32", device: str = "cpu"
) -> tuple[Chain, Problem]:
    """The chain and problem of a seed."""
    random = Random(seed)
    while True:
        problem = _problem(random, size, dtype, device)
        tensors = Tensors()
        chain = _chain(random, problem, tensors)
        if chain is not None:
            return chain.fitted(tensors.shapes), problem


def _problem(random: Random, size: Size, dtype: str, device: str) -> Problem:
    """Kernels, strides and paddings that decoders use, and now and then others."""
    while True:
        rank = random.choice((1, 2, 2, 3))
        kernel, stride, padding = random.choice(
            ((2, 2, 0), (4, 2, 1), (3, 2, 1), (3, 1, 1), (5, 1, 2), (4, 4, 0), (3, 2, 0), (1, 1, 0))
        )
        low, high = size.inputs[rank]
        groups = random.choice((1, 1, 1, 2))
        problem = Problem(
            batch=random.choice(size.batch),
            in_channels=random.choice(size.channels),
            out_channels=random.choice(size.channels),
            spatial=tuple(random.randint(low, high) for _ in range(rank)),
            kernel=(kernel,) * rank,
            stride=(stride,) * rank,
            padding=(padding,) * rank,
            dilation=(random.choice((1, 1, 1, 2)),) * rank,
            output_padding=(0,) * rank,
            groups=groups,
            dtype=dtype,
            device=device,
        )
        try:
            if problem.output().numel <= size.most:
                return problem
        except RuntimeError:
            continue


def _chain(random: Random, problem: Problem, tensors: Tensors) -> Chain | None:
    """A convolution among stages, or none where they leave nothing of the values."""
    conv = s.conv_transpose(
        problem.rank, random.choice((None, tensors.named(problem.out_channels)))
    )
    after = random.randint(1, MOST_STAGES - 1)
    before = random.choice((0, 0, 0, 1, 2)) if after < MOST_STAGES - 2 else 0
    first = list(_stages(random, problem.input, before, _BEFORE, tensors))
    try:
        shape = Chain(*first, conv).shapes(problem)[-1]
        last = list(_stages(random, shape, after, _AFTER, tensors))
        ending = random.choice(((), (), (), (s.flatten(),), (s.squeeze(-1),)))
        chain = Chain(*first, conv, *last, *ending)
        fitted = chain.fitted(tensors.shapes)
        return fitted if fitted.shapes(problem) and fitted.result(problem) else None
    except (RuntimeError, ValueError, IndexError):
        return None


def _stages(
    random: Random, shape: Shape, count: int, makers: "tuple[Maker, ...]", tensors: Tensors
) -> Iterator[Stage]:
    """So many stages, each one that the shape before it allows."""
    while count > 0:
        made = random.choice(makers)(random, shape, tensors)
        try:
            for stage in made[:count]:
                fitted = stage.fitted(tensors.shapes, len(shape.spatial))
                shape = fitted.shape(shape)
                if min(shape.dims) < 1:
                    return
                yield stage
                count -= 1
        except (RuntimeError, ValueError):
            return


Maker = Callable[[Random, Shape, Tensors], tuple[Stage, ...]]


def _element(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    """An element stage of numbers."""
    number = random.uniform(0.3, 1.5)
    return random.choice(
        (
            (s.relu(),), (s.relu6(),), (s.leaky_relu(number / 5),), (s.elu(number),), (s.selu(),),
            (s.celu(number),), (s.gelu(),), (s.gelu("tanh"),), (s.silu(),), (s.mish(),),
            (s.softplus(),), (s.softsign(),), (s.hardswish(),), (s.hardsigmoid(),),
            (s.hardtanh(-number, number),), (s.logsigmoid(),), (s.tanhshrink(),),
            (s.softshrink(0.2),),
            (s.threshold(number, number),), (s.abs(),), (s.neg(),), (s.square(),), (s.pow(3),),
            (s.sigmoid(),), (s.tanh(),), (s.clamp(-number, 1.0),), (s.maximum(-number),),
            (s.minimum(number),), (s.sub(number),), (s.div(number),), (s.add(number),),
            (s.scale(-number),), (s.sin(),), (s.cos(),), (s.erf(),),
            (s.clamp(-3.0, 3.0), s.exp()), (s.softplus(), s.add(0.1), s.log()),
            (s.square(), s.add(0.5), s.rsqrt()), (s.abs(), s.add(0.5), s.sqrt()),
            (s.square(), s.add(1.0), s.reciprocal()),
        )
    )  # fmt: skip


def _with_tensor(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    """An element stage with a tensor: per channel, as large as the values, or broadcast."""
    kept = [size if random.random() < 0.5 else 1 for size in shape.dims]
    tensor = random.choice((tensors.channel, tensors.full, lambda _: tensors.named(*kept)))(shape)
    return (random.choice((s.add, s.sub, s.scale, s.maximum, s.minimum, gated, s.prelu))(tensor),)


@s.pointwise
def gated(x: Any, gate: Any) -> Any:
    """A stage of a user's own, with x used twice."""
    return x * s.sigmoid(gate) + s.tanh(x)


def _over_axes(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    """A softmax over any axes but the samples', or a reduction that keeps them."""
    axes = list(range(1, len(shape.dims)))
    some = tuple(sorted(random.sample(axes, random.randint(1, len(axes)))))
    dims: tuple[Any, ...] = (some, "channels", "space")
    dim = random.choice(dims)
    reduction = random.choice((s.sum, s.mean, s.amax, s.amin, s.logsumexp))
    if random.random() < 0.6:
        return (random.choice((s.softmax, s.log_softmax))(dim),)
    return (reduction(dim, keepdim=True),)


def _window(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    kernel = random.choice((2, 3))
    stride = random.choice((None, 1, 2))
    padding = random.choice((0, 0, 1))
    ceil = random.random() < 0.3
    if random.random() < 0.2:
        sizes = tuple(random.randint(1, size) for size in shape.spatial)
        return (random.choice((s.adaptive_avg_pool, s.adaptive_max_pool))(sizes),)
    dilation = random.choice((1, 1, 2))
    if not all(_filled(size, kernel, stride, padding, dilation) for size in shape.spatial):
        dilation = 1
    return (
        random.choice(
            (
                s.max_pool(kernel, stride, padding, dilation, ceil),
                s.avg_pool(kernel, stride, padding, ceil, random.random() < 0.5),
                s.lp_pool(2, kernel, stride, ceil),
            )
        ),
    )


def _filled(size: int, kernel: int, stride: int | None, padding: int, dilation: int) -> bool:
    """Whether each window of an axis holds a value: torch's gradient of one that holds none is
    written beyond the tensor's memory.
    """
    early = range(-padding, 0, stride or kernel)  # others begin at a value
    return all(any(0 <= at + tap * dilation < size for tap in range(kernel)) for at in early)


def _norm(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    weights = (tensors.channel(shape), tensors.channel(shape))
    mean, var = tensors.channel(shape), tensors.channel(shape)
    last = shape.spatial[-1:]
    groups = random.choice([g for g in (1, 2, 4) if shape.c % g == 0])
    return (
        random.choice(
            (
                s.batch_norm(mean, var, *weights),
                s.batch_norm(weight=weights[0], bias=weights[1], training=True),
                s.group_norm(groups, *weights),
                s.instance_norm(weight=weights[0], bias=weights[1]),
                s.layer_norm("channels", *weights),
                s.layer_norm(last, tensors.named(*last), tensors.named(*last)),
                s.rms_norm("channels", weights[0]),
                s.rms_norm(last, tensors.named(*last)),
            )
        ),
    )


def _rearranged(random: Random, shape: Shape, tensors: Tensors) -> tuple[Stage, ...]:
    skip = tensors.named(shape.n, random.choice((1, shape.c)), *shape.spatial)
    return (random.choice((s.pixel_shuffle(2), s.cat(skip), s.cat(skip, first=True))),)


_AFTER: tuple[Maker, ...] = (
    _element, _element, _element, _with_tensor, _with_tensor,
    _over_axes, _window, _norm, _rearranged,
)  # fmt: skip
_BEFORE: tuple[Maker, ...] = (_element, _element, _with_tensor, _window, _norm)
