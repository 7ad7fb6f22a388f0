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

WARPS, LANES = 4, 32
SUMS, CODE = 64, 1536
"""Sums that a thread holds; products that a step is written out to."""
ANCHORS = 8
"""Those of a thread at most: more save little of the weights' way."""
PROGRAMS = 4
"""Those that share a multiprocessor, as its registers have it."""
CLOCK = 1.7e9
"""Of a multiprocessor. At each it issues four instructions and serves one warp's load."""
FOR_A_LOAD = 3
"""Instructions of a load of inputs: its address, whether it is there, itself."""
STEP = 5e-7
"""Seconds from a step's loads to its last product, where nothing else is left to do meanwhile."""
LAUNCH = 3e-6
"""Seconds of another launch. Without tensor cores there is one; with them, one more copies input
and weights, and one more takes weights that are not finite."""
ROWS, CHANNELS = 64, 16
"""What tensor cores pad phases and channels to, as rows of one product, or channels alone."""
SHARES = 0.5, 0.1
"""What these two do of the products per second that a library reaches."""


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
    how many sums there are, products, and inputs that are read."""

    anchors: int
    channels: int
    sums: int
    products: int
    taps: int

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
        )


def verdict(problem: Problem) -> str:
    """Why no tiles serve a problem, whatever its sizes; empty where some do."""
    work = FewWork.of(problem)
    if problem.groups > 1:
        return f"it has no groups, and there are {problem.groups}"
    for axis in problem.axes:
        if axis.dilation > 1 and axis.k > 1:
            return f"it has no dilation, and there is one of {axis.dilation}"
    if work.sums > SUMS:
        return f"an anchor has {work.sums} sums; a thread holds {SUMS}"
    if work.products > CODE:
        return f"an input meets {work.products} weights; {CODE} are written out"
    return ""


def space(work: FewWork, pieces: bool, multiprocessors: int) -> Iterator[FewTiling]:
    """Tiles that suit a work, those that take the least first; channels of the input lie side by
    side as ``pieces`` of four, or one by one."""
    found = {
        FewTiling(held, together, pieces)
        for together in ((4,) if pieces else (4, 2, 1))
        for held in (_most(work, together), 1)
        if held and work.channels % together == 0
    }
    yield from sorted(found, key=lambda each: (_cost(work, each, multiprocessors), -each.held))


def _most(work: FewWork, together: int) -> int:
    """Anchors that a thread holds the sums of; 0 where the code would be too long."""
    most = min(ANCHORS, SUMS // work.sums, CODE // (together * work.products))
    return 1 << most.bit_length() - 1 if most else 0


def _cost(work: FewWork, tiles: FewTiling, multiprocessors: int) -> float:
    """Seconds of the products, whatever memory takes."""
    loads = tiles.held * work.taps * (0.25 if tiles.pieces else 1)
    issued = (tiles.held + 1) * work.products + FOR_A_LOAD * loads
    clocks = max(issued / 4, loads + work.products) * WARPS * work.channels
    programs = -(-work.anchors // tiles.anchors)
    waves = -(-programs // (PROGRAMS * multiprocessors))
    least = waves * work.channels / tiles.together * STEP
    return max(clocks * -(-programs // multiprocessors) / CLOCK, least)


def seconds(problem: Problem, tiles: FewTiling, multiprocessors: int) -> float:
    """What tiles are counted to take for a problem."""
    read, written = _bytes(problem)
    rate = machine(problem.device).bandwidth
    return max(_cost(FewWork.of(problem), tiles, multiprocessors), (read + written) / rate)


def with_tensor_cores(problem: Problem) -> float:
    """The same where tensor cores multiply, channels padded to the rows of their products."""
    read, written = _bytes(problem)
    outputs, rates = problem.out_channels, machine(problem.device)
    phases = prod(problem.stride)
    divided = all(k % s == 0 for k, s in zip(problem.kernel, problem.stride, strict=True))
    gemm, portable = SHARES
    if divided and phases > 1:
        padded = -(-outputs * phases // ROWS) * ROWS / (outputs * phases) / gemm
    else:
        padded = -(-outputs // CHANNELS) * CHANNELS / outputs / portable
    products = problem.flops() * padded / rates.flops[problem.arithmetic]
    return max(products, (read + written) / rates.bandwidth) + 2 * read / rates.bandwidth + 2 * LAUNCH


def _bytes(problem: Problem) -> tuple[int, int]:
    item = ELEMENTS[problem.dtype].itemsize
    return item * problem.input.numel, item * problem.output().numel


def expected(problem: Problem) -> float:
    """Seconds of a problem on tensors that lie as it says; Inf where others serve it."""
    if verdict(problem):
        return float("inf")
    _, _, capability = problem.device.partition(":sm")
    count = MULTIPROCESSORS.get(int(capability or 90), 108)
    pieces = problem.layout == "channels_last" and problem.in_channels % 4 == 0
    found = [seconds(problem, each, count) for each in space(FewWork.of(problem), pieces, count)]
    return min(found, default=float("inf"))
