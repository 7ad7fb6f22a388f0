"""Tiles for few output channels, and what they are counted to take: few kinds, since a kernel is
built for each.

What is counted was fitted to the times of 15 layers on an H200; most tiles that were timed take
within a quarter of it (``tests/backends/triton/test_few_tiling.py`` has the times).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from transfuse.backends.triton.gpu import MULTIPROCESSORS
from transfuse.elements import ELEMENTS
from transfuse.plan import machine
from transfuse.problem import Problem

OUTPUTS = 4
"""Channels of the output at most: of 16, tensor cores pad most of their products no more."""
WARPS, LANES = 4, 32
SUMS, READ, CODE = 64, 100, 1024
"""Sums that a thread holds; inputs that it reads of a channel; products that a step is written out
to."""
TAPS = 64
"""Inputs of a channel that meet in an output: each is written out, with its place and its mask."""
ANCHORS = 8
"""Those of a thread at most: more save little of the weights' way."""
TOGETHER = 4
"""Channels of a step at most."""
PROGRAMS = 3
"""Those that share a multiprocessor, as its registers have it."""
STEP = 2.1e-7
"""Seconds that a step takes whatever is in it: its first load has to be there."""
PRODUCT = 0.9e-9
"""Seconds of a thread's product, with others at work on the multiprocessor or without."""
FOR_A_WEIGHT, FOR_AN_INPUT = 6, 11
"""Products that take as long as a load does: of a weight, which all threads share, and of an input,
with its address and whether it is there."""
LAUNCH = 3e-6
"""Seconds of a launch. Without tensor cores there is one; with them, one more copies input and
weights."""
CHANNELS, PADDED = 16, 0.2
"""What tensor cores pad output channels to, and what they then do of the products per second that
a library reaches."""
ROWS, MULTIPLIED = 64, 0.1
"""The same where phases and channels are the rows of one product."""
MARGIN = 0.85
"""It serves where it is expected to take at most so much of the time of tensor cores."""


@dataclass(frozen=True)
class FewTiling:
    """The anchors of a thread, and the channels of the input in a step."""

    held: int
    together: int

    @property
    def anchors(self) -> int:
        return self.held * LANES * WARPS

    def __str__(self) -> str:
        return f"tile of {self.anchors} anchors channels by {self.together}"


@dataclass(frozen=True)
class FewWork:
    """What is to be computed: anchors of all samples, channels of the input, and for each of both
    how many sums there are, products, and inputs that are read. ``words``: registers of a sum.
    """

    anchors: int
    channels: int
    sums: int
    products: int
    taps: int
    words: int

    @classmethod
    def of(cls, problem: Problem) -> "FewWork":
        steps = [*zip(problem.kernel, problem.stride, strict=True)]
        sizes = problem.output().spatial
        return cls(
            problem.batch * prod(-(-n // s) for n, s in zip(sizes, problem.stride, strict=True)),
            problem.in_channels,
            prod(problem.stride) * problem.out_channels,
            prod(problem.kernel) * problem.out_channels,
            prod(-(-k // s) for k, s in steps),
            ELEMENTS[problem.dtype].compute.itemsize // 4,
        )

    @property
    def most(self) -> int:
        """Sums that a thread holds."""
        return SUMS // self.words


def verdict(problem: Problem) -> str:
    """Why no tiles serve a problem, whatever its sizes; empty where some do."""
    if problem.out_channels > OUTPUTS:
        return f"it takes at most {OUTPUTS} output channels, and there are {problem.out_channels}"
    if problem.groups > 1:
        return f"it has no groups, and there are {problem.groups}"
    for axis in problem.axes:
        if axis.dilation > 1 and axis.k > 1:
            return f"it has no dilation, and there is one of {axis.dilation}"
    work = FewWork.of(problem)
    if work.sums > work.most:
        return f"an anchor has {work.sums} sums; a thread holds {work.most}"
    if work.taps > TAPS:
        return f"an output meets {work.taps} inputs of a channel; {TAPS} are written out"
    if work.products > CODE:
        return f"an input meets {work.products} weights; {CODE} are written out"
    return ""


def space(problem: Problem, multiprocessors: int) -> Iterator[FewTiling]:
    """Tiles that suit a problem, those that take the least first."""
    work = FewWork.of(problem)
    found = [
        FewTiling(held, together)
        for together in (TOGETHER, 2, 1)
        for held in (ANCHORS, 4, 2, 1)
        if held <= _most(work, together) and work.channels % together == 0
    ]
    yield from sorted(found, key=lambda each: _cost(work, each, multiprocessors))


def _most(work: FewWork, together: int) -> int:
    """Anchors that a thread holds the sums of; 0 where there are too many."""
    sums = work.most if together == 1 else work.most // 2  # more inputs are on their way
    return min(sums // work.sums, READ // work.taps, CODE // (together * work.products))


def _cost(work: FewWork, tiles: FewTiling, multiprocessors: int) -> float:
    """Seconds of the steps: programs that share a multiprocessor take as long as one of them."""
    products = (tiles.held * work.words + FOR_A_WEIGHT) * work.products
    products += FOR_AN_INPUT * tiles.held * work.words * work.taps
    programs = -(-work.anchors // tiles.anchors)
    waves = -(-programs // (PROGRAMS * multiprocessors))
    steps = work.channels // tiles.together
    return waves * steps * (STEP + PRODUCT * tiles.together * products)


def seconds(problem: Problem, tiles: FewTiling, multiprocessors: int) -> float:
    """What tiles are counted to take for a problem."""
    moved = sum(_bytes(problem)) / machine(problem.device).bandwidth
    return LAUNCH + _cost(FewWork.of(problem), tiles, multiprocessors) + moved


def with_tensor_cores(problem: Problem) -> float:
    """The same where tensor cores multiply, and zeros pad channels, or the rows of one product."""
    read, written = _bytes(problem)
    outputs, rates = problem.out_channels, machine(problem.device)
    padded = -(-outputs // CHANNELS) * CHANNELS / outputs / PADDED
    if all(_divided(*each) for each in zip(problem.kernel, problem.stride, strict=True)):
        rows = outputs * prod(problem.stride)
        padded = min(padded, -(-rows // ROWS) * ROWS / rows / MULTIPLIED)
    products = problem.flops() * padded / rates.flops[problem.arithmetic]
    return 2 * LAUNCH + products + (3 * read + written) / rates.bandwidth  # a copy reads and writes


def _divided(kernel: int, stride: int) -> bool:
    """Whether all phases along an axis can be rows of one product."""
    return kernel % stride == 0 and not stride & (stride - 1) and (stride > 1 or kernel == 1)


def _bytes(problem: Problem) -> tuple[int, int]:
    item = ELEMENTS[problem.dtype].itemsize
    return item * problem.input.numel, item * problem.output().numel


def of_theirs(problem: Problem, tiles: FewTiling, multiprocessors: int) -> float:
    """What tiles are expected to take of the time of tensor cores."""
    return seconds(problem, tiles, multiprocessors) / with_tensor_cores(problem)


def expected(problem: Problem) -> float | None:
    """Seconds of a problem on tensors that lie as it says; None where other engines serve it."""
    # Along one axis torch has no such form.
    if (problem.layout == "channels_last" and problem.rank > 1) or verdict(problem):
        return None
    _, _, capability = problem.device.partition(":sm")
    count = MULTIPROCESSORS.get(int(capability or 90), 108)
    tiles = next(space(problem, count))
    if of_theirs(problem, tiles, count) > MARGIN:
        return None
    return seconds(problem, tiles, count)
