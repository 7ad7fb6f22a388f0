"""Plain layers drawn by seed: transposed convolutions of every kind that people build.

Half of them have the kernel, stride and padding of published decoders; the others any kernel, with
a stride that mostly does not leave gaps. The benchmark times them, and the choice between our
kernels and cuDNN's is fitted to some and shown on others.
"""

from dataclasses import dataclass
from math import prod
from random import Random

from transfuse.problem import Problem


@dataclass(frozen=True)
class Bounds:
    """The most that one layer may ask for."""

    elements: int  # of the input, and of the output
    flops: int


SMALL = Bounds(2**22, 2 * 10**9)
LARGE = Bounds(2**26, 2 * 10**11)

_USUAL = (  # kernel, stride, padding, output padding
    (2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (5, 2, 2, 1), (4, 4, 0, 0),
    (1, 1, 0, 0), (8, 4, 2, 0), (16, 8, 4, 0), (5, 1, 2, 0), (3, 2, 0, 0), (4, 1, 0, 0),
    (6, 2, 2, 0), (7, 1, 3, 0),
)  # fmt: skip
_ODD_CHANNELS = (3, 5, 6, 12, 20, 24, 40, 48, 72, 96, 100, 144, 160, 192, 320, 384, 480, 640, 768)
_MOST_TAPS = {1: 16, 2: 16, 3: 7}
"""The largest kernel along an axis, by the number of axes."""
_LONGEST = {1: 65_536, 2: 1024, 3: 128}
"""The largest input along an axis, by the number of axes."""


def drawn_layer(seed: int, bounds: Bounds = LARGE) -> tuple[Problem, bool]:
    """The problem of a seed, and whether the layer has a bias."""
    random = Random(f"layer {seed}")
    while True:
        problem = _problem(random, bounds)
        try:
            output = problem.output().numel
        except RuntimeError:  # padding leaves nothing
            continue
        most = max(output, problem.input.numel, prod(problem.weight))
        if most <= bounds.elements and problem.flops() <= bounds.flops:
            return problem, random.random() < 0.6


def _problem(random: Random, bounds: Bounds) -> Problem:
    rank = random.choice((1, 2, 2, 2, 3))
    kernel, stride, padding, dilation, output_padding = zip(*_axes(random, rank), strict=True)
    groups, in_channels, out_channels = _channels(random)
    batch = min(128, round(2 ** random.uniform(0, 7.5)))
    # From a feature map of a few hundred kilobytes to the largest allowed, each size as likely.
    elements = bounds.elements ** random.uniform(0.65, 1)
    positions = elements / batch / max(in_channels, out_channels * prod(stride))
    longest = min(_LONGEST[rank], max(1, round(positions ** (1 / rank))))
    square = random.random() < 0.6
    return Problem(
        batch=batch,
        in_channels=in_channels,
        out_channels=out_channels,
        spatial=tuple(
            longest if square else random.randint((longest + 1) // 2, longest) for _ in range(rank)
        ),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=output_padding,
        groups=groups,
    )


def _axes(random: Random, rank: int) -> list[tuple[int, ...]]:
    """Kernel, stride, padding, dilation and output padding of each axis: mostly all the same."""
    if random.random() < 0.5:
        usual = [each for each in _USUAL if each[0] <= _MOST_TAPS[rank]]
        kernel, stride, padding, more = random.choice(usual)
        return [(kernel, stride, padding, 1, more)] * rank
    dilation = random.choice((1, 1, 2, 3, 4))
    axes = [_axis(random, _MOST_TAPS[rank], dilation) for _ in range(rank)]
    return axes if random.random() < 0.3 else axes[:1] * rank


def _axis(random: Random, most: int, dilation: int) -> tuple[int, ...]:
    kernel = round(most ** random.uniform(0, 1))
    # A stride beyond the kernel leaves outputs that no input reaches: few do that.
    stride = random.randint(1, 8 if random.random() < 0.05 else min(8, kernel))
    padding = random.randint(0, dilation * (kernel - 1) // 2)
    more = random.choice((0, 0, random.randrange(max(stride, dilation))))
    return kernel, stride, padding, dilation, more


def _channels(random: Random) -> tuple[int, int, int]:
    """Groups, channels of the input and of the output."""
    kind = random.random()
    if kind < 0.1:  # depthwise
        channels = _count(random)
        return channels, channels, channels
    if kind < 0.25:
        groups = 2 ** random.randint(1, 5)
        parts = [max(1, _count(random) // groups) for _ in range(2)]
        return groups, *(groups * part for part in parts)
    return 1, _count(random), _count(random)


def _count(random: Random) -> int:
    """Mostly a power of two, from 1 to 1024."""
    if random.random() < 0.2:
        return random.choice(_ODD_CHANNELS)
    return int(2 ** min(10, max(0, round(random.gauss(5.5, 2.5)))))
