"""Tiles for few output channels, and what they are counted to take: few kinds, since a kernel is
built for each.
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
PROGRAMS = 3
"""Those that share a multiprocessor, as its registers have it."""
CLOCK = 1.7e9
"""Of a multiprocessor. At each it issues four instructions, and loads for one warp."""
FOR_A_LOAD = 3
"""Instructions of a load of inputs: its address, whether it is there, itself."""
APART = 16
"""Clocks of a load whose lanes read lines of their own."""
STEP = 5e-7
"""Seconds from a step's loads to its last product, where nothing else is left to do meanwhile."""
LAUNCH = 3e-6
"""Seconds of another launch. Without tensor cores there is one; with them, one more copies input
and weights, and one more takes weights that are not finite."""
ROWS, CHANNELS = 64, 16
"""What tensor cores pad phases and channels to, as rows of one product, or channels alone."""
SHARES = 0.3, 0.2
"""What these two do of the products per second that a library reaches."""
TOGETHER = 4
"""Channels of the input that one load takes, where they lie side by side."""


@dataclass(frozen=True)
class FewTiling:
    """The anchors of a thread, and the channels of the input in a step; ``pieces``: these lie side
    by side, and are loaded at once."""

    held: int
    together: int
    pieces: bool

    @property
    def anchors(self) -> int:
        return self.held * LANES * WARPS

    def __str__(self) -> str:
        how = " at once" if self.pieces else ""
        return f"tile of {self.anchors} anchors channels by {self.together}{how}"


@dataclass(frozen=True)
class FewWork:
    """What is to be computed: anchors of all samples, channels of the input, and for each of both
    how many sums there are, products, and inputs that are read.

    ``words``: registers of a sum; ``beside``: inputs of neighbouring anchors lie side by side.
    """

    anchors: int
    channels: int
    sums: int
    products: int
    taps: int
    words: int
    beside: bool

    @classmethod
    def of(cls, problem: Problem, beside: bool) -> "FewWork":
        steps = [*zip(problem.kernel, problem.stride, strict=True)]
        sizes = problem.output().spatial
        return cls(
            problem.batch * prod(-(-n // s) for n, s in zip(sizes, problem.stride, strict=True)),
            problem.in_channels,
            prod(problem.stride) * problem.out_channels,
            prod(problem.kernel) * problem.out_channels,
            prod(-(-k // s) for k, s in steps),
            ELEMENTS[problem.dtype].compute.itemsize // 4,
            beside,
        )

    @property
    def most(self) -> int:
        """Sums that a thread holds."""
        return SUMS // self.words


def verdict(problem: Problem) -> str:
    """Why no tiles serve a problem, whatever its sizes; empty where some do."""
    if problem.out_channels > OUTPUTS:
        return f"it takes {OUTPUTS} output channels, and there are {problem.out_channels}"
    if problem.groups > 1:
        return f"it has no groups, and there are {problem.groups}"
    for axis in problem.axes:
        if axis.dilation > 1 and axis.k > 1:
            return f"it has no dilation, and there is one of {axis.dilation}"
    work = FewWork.of(problem, True)
    if work.sums > work.most:
        return f"an anchor has {work.sums} sums; a thread holds {work.most}"
    if work.taps > TAPS:
        return f"an output meets {work.taps} inputs of a channel; {TAPS} are written out"
    if work.products > CODE:
        return f"an input meets {work.products} weights; {CODE} are written out"
    return ""


def space(work: FewWork, pieces: bool, multiprocessors: int) -> Iterator[FewTiling]:
    """Tiles that suit a work, those that take the least first; channels of the input lie side by
    side as ``pieces``, or are loaded one by one."""
    found = {
        FewTiling(held, together, pieces and together == TOGETHER)
        for together in (TOGETHER, 2, 1)
        for held in {_most(work, together), 1}
        if held and together * work.products <= CODE and work.channels % together == 0
    }
    yield from sorted(found, key=lambda each: (_cost(work, each, multiprocessors), -each.held))


def _most(work: FewWork, together: int) -> int:
    """Anchors that a thread holds the sums of; 0 where there are too many."""
    sums = work.most if together == 1 else work.most * 3 // 4  # more inputs are on their way
    limits = sums // work.sums, READ // work.taps, CODE // (together * work.products)
    most = min(ANCHORS, *limits)
    return 1 << most.bit_length() - 1 if most else 0


def _cost(work: FewWork, tiles: FewTiling, multiprocessors: int) -> float:
    """Seconds of the products, whatever memory takes."""
    loads = tiles.held * work.taps / (tiles.together if tiles.pieces else 1)
    issued = (tiles.held * work.words + 1) * work.products + FOR_A_LOAD * loads
    served = loads * (work.words if work.beside else APART) + work.products
    clocks = max(issued / 4, served) * WARPS * work.channels
    programs = -(-work.anchors // tiles.anchors)
    waves = -(-programs // (PROGRAMS * multiprocessors))
    least = waves * work.channels / tiles.together * STEP
    return max(clocks * -(-programs // multiprocessors) / CLOCK, least)


def seconds(problem: Problem, beside: bool, tiles: FewTiling, multiprocessors: int) -> float:
    """What tiles are counted to take for a problem."""
    work = FewWork.of(problem, beside)
    moved = sum(_bytes(problem)) / machine(problem.device).bandwidth
    return max(_cost(work, tiles, multiprocessors), moved)


def with_tensor_cores(problem: Problem) -> float:
    """The same where tensor cores multiply, channels padded to the rows of their products."""
    read, written = _bytes(problem)
    outputs, rates, (gemm, portable) = problem.out_channels, machine(problem.device), SHARES
    rows = outputs * prod(problem.stride)
    if all(k % s == 0 for k, s in zip(problem.kernel, problem.stride, strict=True)):
        padded = -(-rows // ROWS) * ROWS / rows / gemm
    else:
        padded = -(-outputs // CHANNELS) * CHANNELS / outputs / portable
    products = problem.flops() * padded / rates.flops[problem.arithmetic]
    moved = (read + written) / rates.bandwidth
    return max(products, moved) + 2 * read / rates.bandwidth + 2 * LAUNCH


def _bytes(problem: Problem) -> tuple[int, int]:
    item = ELEMENTS[problem.dtype].itemsize
    return item * problem.input.numel, item * problem.output().numel


def expected(problem: Problem) -> float | None:
    """Seconds of a problem on tensors that lie as it says; None where other engines serve it."""
    if verdict(problem):
        return None
    _, _, capability = problem.device.partition(":sm")
    count = MULTIPROCESSORS.get(int(capability or 90), 108)
    last = problem.layout == "channels_last"
    pieces = last and problem.in_channels % TOGETHER == 0
    tiles = next(space(FewWork.of(problem, not last), pieces, count), None)
    if tiles is None:
        return None
    ours = seconds(problem, not last, tiles, count)
    return ours if ours <= with_tensor_cores(problem) else None
