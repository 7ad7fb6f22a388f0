"""The parameters of a launch plan's launches, laid out once as the driver reads them.

Triton's own way to launch looks at each argument in Python and encodes each descriptor, every time:
several times what a small problem takes to compute. A buffer holds every parameter of every launch,
and what is left for a call is to write a few addresses into it.

Which parameters a kernel has, and how large they are, is read from its PTX. Where anything is not
as expected (another Triton, a kernel that needs more than a grid), there are no buffers, and Triton
launches as it always does.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

from torch import Tensor
from triton import knobs

from transfuse.backends.triton import driver
from transfuse.backends.triton.launch import UNREAD, All, At, Boxes, Launch
from transfuse.backends.triton.versions import parameters

PLACES = 32
"""Buffers are kept for so many places of scratch memory and streams; one more, and all go."""

WORD, MAP = 8, 128
"""Bytes of an address; of a ``CUtensorMap``, and what that is aligned to."""
CONFIG = ctypes.sizeof(driver.LaunchConfig)

ENTRY = re.compile(r"\.entry\s+\w+\s*\(([^)]*)\)\s*\.reqntid\s+(\d+)")
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[bfsu](\d+)\s[^\[]*(?:\[(\d+)\])?")


class Strange(Exception):
    """A kernel whose parameters are not as expected."""


@dataclass(frozen=True)
class TensorMap:
    """A descriptor among the parameters of a launch, and what Triton knows of it."""

    boxes: Boxes
    meta: Any

    def encoded(self, memory: Sequence[int]) -> bytes:
        """The map for scratch memory at these addresses: from an object of Triton's own."""
        found = parameters(self.boxes.of(memory), self.meta)[0]
        if type(found).__basicsize__ != 2 * MAP or id(found) % MAP:
            raise Strange("a descriptor that is no tensor map")
        # The object is Python's header, padded to the alignment of the map, and then the map.
        return ctypes.string_at(id(found) + MAP, MAP)


def sizes(ptx: str) -> tuple[list[int], int]:
    """The bytes of each parameter of a kernel, and the threads of a block."""
    found = ENTRY.findall(ptx)
    if len(found) != 1:
        raise Strange("not one entry")
    matches = [PARAMETER.search(line) for line in found[0][0].split(",")]
    if None in matches:
        raise Strange("a parameter of no known size")
    return [int(m[1]) // 8 * int(m[2] or 1) for m in matches if m], int(found[0][1])


def values(launch: Launch, memory: Sequence[int]) -> Iterator[Any]:
    """What a launch passes, in order: tuples are flat, and what Triton compiled in is left out."""
    signature = launch.compiled.src.signature.values()
    metas = iter(launch.compiled.metadata.tensordesc_meta or ())

    def flat(kind: Any, value: Any) -> Iterator[Any]:
        if isinstance(value, All):
            value = tuple(At(number) for number in value.numbers) or (At(UNREAD),)
        if isinstance(kind, tuple):
            for each in zip(kind, value, strict=True):
                yield from flat(*each)
        elif isinstance(value, Boxes):
            meta = next(metas, None)  # without: the GPU knows no maps, and is told an address
            yield At(value.number) if meta is None else TensorMap(value, meta)
            yield from parameters(value.of(memory), meta)[1:]
        elif kind != "constexpr":
            yield value

    for kind, value in zip(signature, launch.arguments, strict=True):
        yield from flat(kind, value)


def plain(launch: Launch, threads: int) -> None:
    """Raise where a kernel needs more than a grid, a block and shared memory."""
    known = launch.compiled.metadata
    extras = (
        known.num_ctas != 1,
        known.launch_cooperative_grid,
        known.launch_pdl,
        known.global_scratch_size,
        known.profile_scratch_size,
        launch.programs < 1,
        threads != 32 * known.num_warps,
    )
    if any(extras):
        raise Strange(f"{known.name} needs more than a grid")


def number(value: Any, size: int) -> bytes:
    """A number as a parameter of that size, rounded as C does."""
    if isinstance(value, Tensor):
        value = value.data_ptr()
    if isinstance(value, int) and size <= WORD:
        return value.to_bytes(size, "little", signed=value < 0)
    floats: dict[int, Any] = {4: ctypes.c_float, 8: ctypes.c_double}
    if isinstance(value, float) and size in floats:
        return bytes(floats[size](value))
    raise Strange(f"{value!r} in {size} bytes")


class Layout:
    """Where everything lies in a buffer, from its start: first what every launch may read.

    That is the addresses of the tensors given, those of scratch memory, and a null; then numbers,
    maps, each launch's pointers to its parameters, and what it tells the driver beside them.
    """

    def __init__(self, launches: Sequence[Launch], given: int, memory: Sequence[int]) -> None:
        self.given, self.null = given, WORD * len(memory)
        self.content = bytearray(self.null + WORD)
        self.maps: list[tuple[int, TensorMap]] = []
        self.launches = [(each, *self._lay(each, memory)) for each in launches]

    def _lay(self, launch: Launch, memory: Sequence[int]) -> tuple[list[int], int, int]:
        """The places of a launch's parameters, of the pointers to them, of its configuration."""
        room, threads = sizes(launch.compiled.asm["ptx"])
        plain(launch, threads)
        # Triton gives every kernel two more addresses after its arguments, of scratch memory. None
        # of these kernels asks for any, so both are null.
        passed = [*values(launch, memory), None, None]
        if len(passed) != len(room):
            raise Strange(f"{len(passed)} parameters are not {room}")
        starts = [self._start(each, size) for each, size in zip(passed, room, strict=True)]
        return starts, self._place(bytes(WORD * len(starts))), self._place(bytes(CONFIG))

    def _start(self, value: Any, size: int) -> int:
        """Where a parameter lies."""
        if isinstance(value, TensorMap) and size == MAP and value.boxes.number >= self.given:
            at = self._place(bytes(MAP), MAP)
            self.maps.append((at, value))
            return at
        if isinstance(value, At) and size == WORD:
            return WORD * value.number
        if value is None and size == WORD:
            return self.null
        return self._place(number(value, size))

    def _place(self, content: bytes, align: int = WORD) -> int:
        at = -(-len(self.content) // align) * align
        self.content += bytes(at - len(self.content)) + content
        return at


class ParameterBuffer:
    """Every parameter of every launch, for one place of scratch memory and one stream."""

    def __init__(
        self, layout: Layout, memory: Sequence[int], stream: int, home: list["ParameterBuffer"]
    ) -> None:
        buffer = ctypes.create_string_buffer(len(layout.content) + MAP)
        first = -ctypes.addressof(buffer) % MAP
        start = ctypes.addressof(buffer) + first
        self.view, self.home = memoryview(buffer).cast("B")[first:], home
        self.view[: len(layout.content)] = layout.content
        scratch = memory[layout.given :]
        words = Struct(f"{len(scratch)}Q")
        words.pack_into(self.view, WORD * layout.given, *scratch)
        for at, each in layout.maps:
            self.view[at : at + MAP] = each.encoded(memory)
        self.calls: list[Callable[[], int]] = []
        for launch, starts, pointers, config in layout.launches:
            words = Struct(f"{len(starts)}Q")
            words.pack_into(self.view, pointers, *(start + each for each in starts))
            known = launch.compiled.metadata
            told = driver.LaunchConfig.from_buffer(buffer, first + config)
            told.grid[:] = launch.programs, 1, 1
            told.block[:] = 32 * known.num_warps, 1, 1
            told.shared, told.stream = known.shared, stream
            given = start + config, launch.compiled.function, start + pointers, None
            self.calls.append(partial(driver.launcher(), *given))


class ParameterBuffers:
    """The launches of a launch_plan, to be made again and again.

    A call takes a buffer for itself and gives it back: threads never share one.
    """

    def __init__(
        self, launches: Sequence[Launch], given: Sequence[int], scratch: Sequence[int], base: int
    ) -> None:
        """Launches on tensors at ``given``, and scratch memory so far from ``base``."""
        self.launches, self.scratch = launches, scratch
        self.pack = Struct(f"{len(given)}Q").pack_into
        self.layout = Layout(launches, len(given), self._memory(given, base))
        self.free: dict[tuple[int, int], list[ParameterBuffer]] = {}

    @classmethod
    def of(cls, *given: Any) -> "ParameterBuffers | None":
        """None where a launch is not as expected: Triton makes it then."""
        if driver.launcher() is None:
            return None
        try:
            buffers = cls(*given)
            buffers._buffer(given[1], given[3], 0)
        except (Strange, ArithmeticError, AttributeError, ImportError, TypeError, ValueError):
            return None
        return buffers

    def __call__(self, given: Sequence[int], base: int, stream: int) -> None:
        """Make all launches of a call on a stream."""
        try:
            buffer = self.free[base, stream].pop()
        except (KeyError, IndexError):
            buffer = self._buffer(given, base, stream)
        self.pack(buffer.view, 0, *given)
        for call in buffer.calls:
            code = call()
            if code:
                self._again(code, buffer.calls.index(call), given, base, stream)
        buffer.home.append(buffer)

    def _buffer(self, given: Sequence[int], base: int, stream: int) -> ParameterBuffer:
        if len(self.free) >= PLACES:
            self.free.clear()
        home = self.free.setdefault((base, stream), [])
        return ParameterBuffer(self.layout, self._memory(given, base), stream, home)

    def _again(self, code: int, at: int, given: Sequence[int], base: int, stream: int) -> None:
        """A launch that failed: once more where it is the thread's first, and finds no context."""
        launch = self.launches[at]
        if code != driver.INVALID_CONTEXT:
            raise driver.error(code, f"launching {launch.kernel.__name__}")
        launch.again(self._memory(given, base), stream)  # Triton makes one current

    def _memory(self, given: Sequence[int], base: int) -> list[int]:
        return [*given, *(base + each for each in self.scratch)]


def watched() -> bool:
    """Whether somebody is to be told of launches, such as a profiler: Triton tells them."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
