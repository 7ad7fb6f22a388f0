"""A launch plan while it is written: the launches so far, and the memory that they share."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transfuse.backends.triton.arguments import UNREAD, All, Scalar
from transfuse.backends.triton.engines.workload import Workload, workload_of
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import Destination, Epilogue, Gathered
from transfuse.backends.triton.gpu import Gpu
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.packing.packed_layout import Copies
from transfuse.backends.triton.segments import Lowered, Segment
from transfuse.backends.triton.strides import Five, Order, Three, inner, three, wide
from transfuse.backends.triton.told import all_told, told
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.stages.actions import Pool

ACC = Scalar("float32")
WIDE = Scalar("float64")
X, WEIGHT, OUT, OPERANDS = range(4)
"""Tensors of a call by number; operands follow in the order of their names, then the scratch."""


@dataclass(frozen=True)
class Place:
    """A tensor between two segments: its number, and how it lies."""

    number: int
    strides: Five
    parts: int = 1
    part: int = 0
    """Results of shares of a window's members, and how far these lie apart."""


@dataclass(frozen=True)
class Partials:
    """Partials of a statistic: where they lie, from one of their three numbers to the next, how
    many tiles share one and how many partials that makes for a channel."""

    partials: int
    plane: int
    tiles: int
    run: int


class PackedCopies(NamedTuple):
    """The numbers of the copies of input and weights, and of what was found in these.

    ``wild`` are 32-bit integers: whether weights were not finite, as the careful launch sums it up,
    then the answers of the ``copied`` programs that copied weights.
    """

    rows: int
    packed: int
    wild: int
    copied: int


@dataclass(frozen=True)
class Lying:
    """How the tensors of a call lie.

    ``source``: the input's sizes; ``strides``: of input, weights and output; ``spread``: those of
    operands that have more than a value per channel. ``written``: the type of the result, where
    that is not the input's. ``unaligned``: tensors whose address 16 does not divide.
    """

    source: Three
    strides: tuple[Five, Five, Five]
    operands: Sequence[str]
    spread: Mapping[str, Five] = field(default_factory=dict)
    written: torch.dtype | None = None
    unaligned: Sequence[int] = ()


class Draft:
    """What launches are written from, and what was written; an ``add`` appends its launches."""

    def __init__(
        self,
        lowered: Lowered,
        core: Problem,
        lying: Lying,
        device: torch.device,
        gpu: Gpu,
    ) -> None:
        self.lowered, self.core, self.source = lowered, core, lying.source
        self.device, self.gpu = device, gpu
        self.spread, self.unaligned = lying.spread, lying.unaligned
        self.from_store = True  # kernels that this Triton does not compile may come from there
        self.x_strides, self.weight_strides, self.out_strides = lying.strides
        self.names = {name: OPERANDS + at for at, name in enumerate(lying.operands)}
        self.scratch: list[tuple[int, int, torch.dtype]] = []
        self.bytes = 0
        self.launches: list[Launch] = []
        self.segment = 0  # the one that launches are written for
        self.statistics: dict[int, tuple[int, int]] = {}
        self.packed: dict[Copies, PackedCopies] = {}
        self.copied: set[str] = set()  # input, weights: those that launches copy
        self.acc = WIDE if core.dtype == "fp64" else ACC
        self.written = lying.written or ELEMENTS[core.dtype].dtype
        self.wide = torch.float64 if core.dtype == "fp64" else torch.float32

    def copy(self) -> "Draft":
        """What was written so far, to go on from by way of trial."""
        other = copy(self)
        other.scratch, other.launches = self.scratch.copy(), self.launches.copy()
        other.statistics, other.packed = self.statistics.copy(), self.packed.copy()
        other.copied = self.copied.copy()
        return other

    def likeness(self) -> tuple[list[Tensor], int]:
        """Tensors of no memory that lie as those of a call would; the GPU they are for."""
        element = ELEMENTS[self.core.dtype].dtype
        kinds = [element, element, self.written, *[element] * len(self.names)]
        kinds += [dtype for _, _, dtype in self.scratch]
        found = [torch.empty(1, dtype=kind, device="meta") for kind in kinds]
        for at in self.unaligned:
            found[at] = torch.empty(2, dtype=kinds[at], device="meta")[1:]
        return found, self.gpu.capability

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ELEMENTS[self.core.dtype].itemsize

    @property
    def not_hopper(self) -> str:
        """Why no engine written for Hopper serves, be it the GPU or the arithmetic; or nothing."""
        if not self.gpu.real:
            return "there is no GPU: kernels are interpreted"
        if self.gpu.capability != 90:
            return f"it is written for sm_90, not for sm_{self.gpu.capability}"
        if self.core.arithmetic not in ("tf32", "fp16", "bf16"):
            return f"it multiplies tf32, fp16 and bf16, not {self.core.arithmetic}"
        return ""

    def add(self, kernel: Kernel, programs: int, arguments: list[Any], **options: Any) -> None:
        """One more launch."""
        self.launches.append(Launch(kernel, programs, arguments, options, self.segment))

    def workload(self, each: Segment) -> Workload:
        """A segment that convolves, as tiles are chosen for it."""
        return workload_of(self.lowered, self.core, each)

    def memory(self, elements: int, dtype: torch.dtype | None = None) -> int:
        """The number of a piece of scratch memory."""
        dtype = dtype or self.wide
        self.scratch.append((self.bytes, max(1, elements), dtype))
        self.bytes += -(-max(1, elements) * dtype.itemsize // 512) * 512
        return OPERANDS + len(self.names) + len(self.scratch) - 1

    def between(self, shape: Shape, form: str = "box", parts: int = 1) -> Place:
        """A tensor between two segments; channels innermost where tiles are of samples."""
        d, h, w = three(shape.spatial, 1)
        n, c = shape.n, shape.c
        strides: Five = (c * d * h * w, d * h * w, h * w, w, 1)
        if form == "batch":
            strides = (c, 1, h * w * n * c, w * n * c, n * c)
        return Place(self.memory(parts * shape.numel), strides, parts, shape.numel)

    def constant(self, values: tuple[int, ...]) -> Tensor:
        return _constant(values, self.device)

    def tensors(self, arguments: OpArguments) -> All:
        numbers = [
            self.names[each] if isinstance(each, str) else self.statistics[each[0]][each[1]]
            for each in arguments.tensors
        ]
        return All(tuple(numbers))

    def gather(self, each: Segment, tiles: int, parts: int) -> Partials:
        """Memory for the partials of a segment, so many a tile; none where it gathers none."""
        at = gathered(each)
        if at is None:
            return Partials(UNREAD, 0, tiles, 0)
        statistic = self.lowered.statistics[at]
        counted = tiles if statistic.over_batch else tiles // self.core.batch
        plane = tiles * parts * statistic.channels
        return Partials(self.memory(3 * plane), plane, counted, counted * parts)

    def kind(self, statistic: int | None) -> str:
        """The kind of a statistic, if there is one."""
        return "" if statistic is None else self.lowered.statistics[statistic].kind

    def stored_unit(self, out: Place) -> int:
        """Results of 16 bytes."""
        return 16 // (self.written if out.number == OUT else self.wide).itemsize

    def unit(self, order: Order, channels: int, strides: Five) -> int:
        """How many neighbours of an operand are one aligned piece of it: those of 16 bytes, or 1.

        It is as wide as the input, or less: then these are fewer bytes.
        """
        unit = 16 // self.item
        return unit if order.even(channels, strides, unit) else 1

    def destination(self, out: Place, order: Order, channels: int) -> Destination:
        """Where the results of a segment go, as a kernel is told it.

        Its blocks of channels start at multiples of 16 from those of ``channels``.
        """
        unit = self.stored_unit(out)
        even = order.even(channels, out.strides, unit) and out.part % unit == 0
        return Destination(all_told(out.strides), told(out.part), told(int(even)))

    def counted(self, each: Segment) -> int:
        """The channels that a segment gathers a statistic of."""
        at = gathered(each)
        return 1 if at is None else self.lowered.statistics[at].channels

    def gathered(self, each: Segment, partials: Partials) -> Gathered:
        """Where the partials of a segment go, as a kernel is told it."""
        counted = self.counted(each)
        return Gathered(told(partials.plane), told(partials.tiles), told(counted))

    def epilogue(self, each: Segment, out: Place, arguments: OpArguments) -> Epilogue:
        """What follows the sums of a segment."""
        before, after = arguments.table(each.before), arguments.table(each.after)
        return Epilogue(
            before=before,
            after=after,
            sign=arguments.sign(each.window),
            early=self.kind(each.early),
            late=self.kind(each.late),
            summed=each.summed,
            stored=each.stores,
            inner=inner(out.strides),
            unit=self.stored_unit(out),
            wide=wide(each.result, out.strides),
            only_gathers=each.only_gathers,
        )


@lru_cache(maxsize=1024)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """On its device: kept, since it is the same for all sizes, and a copy there is waited for."""
    return torch.tensor(values, dtype=torch.int32, device=device)


def gathered(each: Segment) -> int | None:
    """The statistic that a segment gathers."""
    return each.early if each.early is not None else each.late


def apart(each: Segment, channels: int) -> tuple[Segment, Segment]:
    """A segment of so many channels up to its window, and what is left of it."""
    shape = each.result._replace(c=channels)
    alone = replace(each, result=shape, after=(), late=None, stores=True)
    return alone, replace(each, convolves=False, source=shape, before=(), early=None)


def kind_of(window: Pool | None) -> str:
    """How the members of a window meet."""
    return "" if window is None else window.how


def numbers(arguments: OpArguments) -> tuple[float, ...]:
    """The numbers of tile ops; one that is not looked at where there are none."""
    return tuple(arguments.numbers) or (0.0,)


def spread_strides(arguments: OpArguments) -> tuple[tuple[int, ...], ...]:
    """The strides of operands with more than a value per channel; some where there are none."""
    return tuple(arguments.strides) or (all_told((0,) * 5),)
