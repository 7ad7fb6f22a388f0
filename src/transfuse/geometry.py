"""Sizes, phases and taps of a transposed convolution along one axis: pure integers.

Output ``o`` gathers input ``i`` through tap ``k`` where ``i * s = o + p - k * d``. All outputs
with the same ``(o + p) mod s`` use the same taps, so an axis falls apart into ``s`` *phases*, each
a dense stride-1 correlation with its own taps. No zero is ever multiplied.

Numbers may be as large as torch takes them: nothing counts up to a stride, and only ``phases``,
which lists them, up to a kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from transfuse.symbols import Symbol

T = TypeVar("T")

LARGEST = 2**31 - 1
"""Of a stride, padding, dilation or window: torch's own kernels keep them in 32 bits."""
FARTHEST = 2**33
"""Of an output padding: that of two paddings and torch's own, each of them at most ``LARGEST``."""
MOST = 2**48
"""Elements of a tensor: beyond any address space, and no offset in bytes leaves 64 bits."""


@dataclass(frozen=True)
class Phase:
    """The outputs ``start, start + s, start + 2s, …`` and the taps that reach them.

    Output ``start + j * s`` is the sum over ``taps`` ``(k, offset)`` of ``x[j + offset] * w[k]``;
    inputs outside ``[0, n)`` count as absent. A phase without taps holds the bias alone.
    """

    start: int
    count: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Axis:
    """One axis: ``n`` inputs, kernel ``k``, stride, padding, dilation, output padding.

    The outputs are ``size`` of those from ``o = padding`` on in the grid where tap ``k`` puts input
    ``i`` at ``i*s + k*d``. They may begin before that grid does and end beyond it: ``padding`` and
    ``output_padding`` have any sign.
    """

    n: int
    k: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    output_padding: int = 0

    @property
    def size(self) -> int:
        """Outputs along the axis: ``(n-1)*s - 2p + d*(k-1) + op + 1``."""
        return self.grid - 2 * self.padding + self.output_padding

    @property
    def grid(self) -> int:
        """Outputs before any padding."""
        return (self.n - 1) * self.stride + self.dilation * (self.k - 1) + 1

    @property
    def in_torch(self) -> bool:
        """Whether torch takes such a padding and output padding."""
        return in_torch(self.stride, self.padding, self.dilation, self.output_padding)

    def phases(self, needed: int | None = None) -> tuple[Phase, ...]:
        """The phases of the first ``needed`` outputs (all of them by default), by start."""
        size = self.size if needed is None else needed
        phases = []
        for start in range(min(self.stride, size)):
            lattice = [(k, start + self.padding - k * self.dilation) for k in range(self.k)]
            taps = tuple((k, at // self.stride) for k, at in lattice if at % self.stride == 0)
            phases.append(Phase(start, len(range(start, size, self.stride)), taps))
        return tuple(phases)

    def pairs(self, needed: int | None = None) -> int:
        """How many (input, tap) pairs land in the first ``needed`` outputs.

        The convolution's exact work along this axis: taps that fall off a border are not counted.
        """
        size = self.size if needed is None else needed
        return self._below(self.padding + size) - self._below(self.padding)

    def _below(self, end: int) -> int:
        """How many pairs have ``i * s + k * d < end``."""
        n = max(0, min(self.n, -(-end // self.stride)))  # inputs with any such tap
        # The first of them have all k taps; input i has (end - 1 - i * s) // d + 1 of them.
        full = min(n, max(0, (end - 1 - (self.k - 1) * self.dilation) // self.stride + 1))
        some = n - full
        if some <= 0:
            return full * self.k
        least = end - 1 - (n - 1) * self.stride  # counted from the last input, so that they rise
        return full * self.k + some + _floor_sum(some, self.dilation, self.stride, least)


def in_torch(stride: int, padding: int, dilation: int, output_padding: int) -> bool:
    """Whether torch takes such options of an axis."""
    return padding >= 0 and 0 <= output_padding < max(stride, dilation)


def pooled(
    n: int, kernel: int, stride: int, padding: int = 0, dilation: int = 1, ceil: bool = False
) -> int:
    """Windows along an axis of ``n``: ``(n + 2p - d*(k-1) - 1) // s + 1``, never below 0.

    ``ceil`` rounds the quotient up, but drops a last window that begins beyond input and padding,
    as torch does.
    """
    rest = n + 2 * padding - dilation * (kernel - 1) - 1
    size = -(-rest // stride) + 1 if ceil else rest // stride + 1
    if ceil and (size - 1) * stride >= n + padding:
        size -= 1
    return max(0, size)


def _floor_sum(n: int, divisor: int, factor: int, term: int) -> int:
    """The sum of ``(factor * i + term) // divisor`` over ``i < n``, in as many steps as digits."""
    total = 0
    while n > 0:
        total += n * (n - 1) // 2 * (factor // divisor) + n * (term // divisor)
        factor, term = factor % divisor, term % divisor
        # What is left counts lattice points under a line; along the other axis it is less steep.
        reach = factor * n + term
        n, term, divisor, factor = reach // divisor, reach % divisor, factor, divisor
        if not divisor:
            break
    return total


def bounded(
    where: str, name: str, values: Sequence[int], most: int, least: int | None = None
) -> None:
    """Refuse what is beyond these; exceptions are torch's, beyond 64 bits ValueError."""
    for value in values:
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{where}: {name} must fit 64 bits, but got {name}={value}")
    if any(value > most for value in values):
        shown = values[0] if len(values) == 1 else list(values)
        raise RuntimeError(f"{where}: {name} must be at most {most}, but got {name}={shown}")
    if least is not None:
        at_least(where, name, values, least)


def at_least(where: str, name: str, values: Sequence[int], least: int) -> None:
    """Refuse what is below it, with torch's exception."""
    if any(value < least for value in values):
        shown = values[0] if len(values) == 1 else list(values)
        raise RuntimeError(f"{where}: {name} must be at least {least}, but got {name}={shown}")


def per_axis(name: str, value: object, rank: int) -> tuple[int, ...]:
    """An option given as an int, or as one int per axis, as a tuple of ``rank`` ints.

    Exceptions are torch's: TypeError for what is not an integer, RuntimeError for a wrong count.
    """
    values = value if isinstance(value, list | tuple) else (value,)
    return one_each(name, tuple(integer(name, v) for v in values), rank)


def one_each(name: str, values: tuple[T, ...], rank: int, what: str = "integer") -> tuple[T, ...]:
    """One of ``values`` for each axis; a single one is for all of them."""
    if len(values) == 1:
        return values * rank
    if len(values) != rank:
        raise RuntimeError(
            f"expected {name} to be one {what} or {rank} of them, one per axis, "
            f"but got {name}={list(values)}"
        )
    return values


def integer(name: str, value: object) -> int:
    """``value`` as an int; bools and floats are refused, NumPy's integers are not."""
    if type(value) is int or (isinstance(value, Symbol) and value.type is int):
        return cast(int, value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__} ({value!r})")
    return int(value.__index__())
