"""The parameters of a launch plan's launches, laid out once as the driver reads them.

Triton's own way to launch looks at each argument in Python and encodes each descriptor, every time:
several times what a small problem takes to compute. A buffer holds every parameter of every launch,
and what is left for a call is to write a few addresses into it.

Which parameters a kernel has, and how large they are, the driver says. Where anything is not as
expected (an old driver, a kernel that needs more than a grid), there are no buffers, and Triton
launches as it always does: a line in the log says why.
"""

import ctypes
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any

from torch import Tensor

from transfuse.backends.triton import driver, machine_code
from transfuse.backends.triton.arguments import UNREAD, All, At, Boxes
from transfuse.backends.triton.build import Build, Strange
from transfuse.backends.triton.driver import MAP
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.machine_code import Loaded
from transfuse.backends.triton.specialised import STATIC
from transfuse.log import once

PLACES = 32
"""Buffers are kept for so many places of scratch memory and streams, and maps for so many of their
tensor; for one more a buffer moves, and all maps go."""

WORD = 8
"""Bytes of an address."""
CONFIG = ctypes.sizeof(driver.LaunchConfig)


@dataclass(frozen=True)
class TensorMap:
    """A descriptor among the parameters of a launch, and how it is encoded."""

    boxes: Boxes
    known: Mapping[str, Any]

    def encoded(self, memory: Sequence[int]) -> bytes:
        """The map for memory at these addresses."""
        boxes = self.boxes
        return driver.encoded(memory[boxes.number], boxes.sizes, boxes.strides, **self.known)


def values(build: Build, loaded: Loaded, arguments: Sequence[Any]) -> Iterator[Any]:
    """What a launch passes, in order: tuples are flat, and what Triton compiled in is left out."""
    descriptors = iter(loaded.descriptors)

    def flat(kind: Any, value: Any) -> Iterator[Any]:
        if isinstance(value, All):
            value = tuple(At(number) for number in value.numbers) or (At(UNREAD),)
        if isinstance(kind, tuple):
            for each in zip(kind, value, strict=True):
                yield from flat(*each)
        elif isinstance(value, Boxes):
            yield from described(value, next(descriptors))
        elif kind != STATIC:
            yield value

    for kind, value in zip(build.signature, arguments, strict=True):
        yield from flat(kind, value)


def described(boxes: Boxes, known: Mapping[str, Any]) -> Iterator[Any]:
    """What is passed for a descriptor: a map, sizes and strides, or what an entry names instead."""
    sizes, strides = boxes.sizes, boxes.strides
    if "map" in known:
        yield TensorMap(boxes, known["map"])
        yield from (*sizes, *strides)
        return
    named: dict[str, Any] = {"address": At(boxes.number)}
    for axis in range(len(sizes)):
        named |= {f"size{axis}": sizes[axis], f"stride{axis}": strides[axis]}
    for word in known["words"]:
        yield named[word] if isinstance(word, str) else word


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

    def __init__(
        self,
        launches: Sequence[Launch],
        loaded: Sequence[Loaded],
        given: int,
        scratch: Sequence[int],
    ) -> None:
        """For so many tensors given, and scratch memory so far from where a call has it."""
        self.given, self.scratch = given, scratch
        self.pack_given = Struct(f"{given}Q").pack_into
        self.pack_scratch = Struct(f"{len(scratch)}Q").pack_into
        self.null = WORD * (given + len(scratch))
        self.content = bytearray(self.null + WORD)
        self.maps: list[tuple[int, TensorMap]] = []
        self.launches = [
            (launch.programs, each, *self._lay(launch, each))
            for launch, each in zip(launches, loaded, strict=True)
        ]

    def _lay(self, launch: Launch, loaded: Loaded) -> tuple[list[int], int, int]:
        """The places of a launch's parameters, of the pointers to them, of its configuration."""
        if launch.programs < 1 or launch.built is None:
            raise Strange(f"{loaded.name} runs in {launch.programs} programs")
        # Triton gives every kernel two more addresses after its arguments, of scratch memory. None
        # of these kernels asks for any, so both are null.
        passed = [*values(launch.built, loaded, launch.arguments), None, None]
        room = loaded.parameters
        if len(passed) != len(room):
            raise Strange(f"{loaded.name} has {len(room)} parameters, not {len(passed)}")
        starts = [self._start(each, size) for each, size in zip(passed, room, strict=True)]
        return starts, self._place(bytes(WORD * len(starts))), self._place(bytes(CONFIG))

    def _start(self, value: Any, size: int) -> int:
        """Where a parameter lies."""
        if isinstance(value, TensorMap) and size == MAP:
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


class MovingMap:
    """A tensor map in a buffer whose memory is another one from call to call."""

    def __init__(self, described: TensorMap, view: memoryview) -> None:
        self.described, self.view = described, view
        self.number, self.address = described.boxes.number, 0
        self.kept: dict[int, bytes] = {}

    def follow(self, memory: Sequence[int]) -> None:
        """Have the map be of the memory that is there: few addresses come again and again."""
        address = memory[self.number]
        if address == self.address:
            return
        content = self.kept.get(address)
        if content is None:
            if len(self.kept) >= PLACES:
                self.kept.clear()
            content = self.kept[address] = self.described.encoded(memory)
        self.view[:], self.address = content, address


class ParameterBuffer:
    """Every parameter of every launch, for one call at a time."""

    def __init__(self, layout: Layout) -> None:
        buffer = ctypes.create_string_buffer(len(layout.content) + MAP)
        first = -ctypes.addressof(buffer) % MAP
        start = ctypes.addressof(buffer) + first
        self.layout, self.view = layout, memoryview(buffer).cast("B")[first:]
        self.view[: len(layout.content)] = layout.content
        self.place = (0, 0)  # of scratch memory, and the stream
        maps = [MovingMap(each, self.view[at : at + MAP]) for at, each in layout.maps]
        self.of_given = [each for each in maps if each.number < layout.given]
        self.of_scratch = [each for each in maps if each.number >= layout.given]
        self.configs: list[driver.LaunchConfig] = []
        self.calls: list[Callable[[], int]] = []
        for programs, each, starts, pointers, config in layout.launches:
            words = Struct(f"{len(starts)}Q")
            words.pack_into(self.view, pointers, *(start + each for each in starts))
            told = driver.LaunchConfig.from_buffer(buffer, first + config)
            told.grid[:] = programs, 1, 1
            told.block[:] = each.threads, 1, 1
            told.shared = each.shared
            self.configs.append(told)
            given = start + config, each.function, start + pointers, None
            self.calls.append(partial(driver.launcher(), *given))

    def move(self, given: Sequence[int], base: int, stream: int) -> None:
        """Have the launches be over scratch memory there, on that stream."""
        layout = self.layout
        scratch = [base + each for each in layout.scratch]
        layout.pack_scratch(self.view, WORD * layout.given, *scratch)
        memory = (*given, *scratch)
        for each in self.of_scratch:
            each.follow(memory)
        for config in self.configs:
            config.stream = stream
        self.place = base, stream


class ParameterBuffers:
    """The launches of a launch_plan, to be made again and again.

    A call takes a buffer for itself and gives it back: threads never share one. They are kept by
    the places that they are for, scratch memory and stream: few of these come again and again.
    """

    def __init__(
        self, launches: Sequence[Launch], device: int, given: int, scratch: Sequence[int]
    ) -> None:
        """Launches on so many tensors given, and scratch memory so far from where a call has it.

        Raises ``Strange`` where the driver cannot make them by its own calls.
        """
        if driver.lacking():
            raise Strange(driver.lacking())
        self.launches, self.device = launches, device
        builds = [each.built for each in launches if each.built is not None]
        loaded = machine_code.loaded(builds, device)
        self.layout = Layout(launches, loaded, given, scratch)
        self.free: dict[tuple[int, int], ParameterBuffer] = {}

    @classmethod
    def of(
        cls, launches: Sequence[Launch], device: int, given: int, scratch: Sequence[int]
    ) -> "ParameterBuffers | None":
        """None where a launch is not as expected: Triton makes it then, and the log says why."""
        try:
            return cls(launches, device, given, scratch)
        except (Strange, OverflowError) as why:
            line = "kernels are launched by Triton's own launcher, which takes longer: %s"
            once(logging.WARNING, ("launcher", str(why)), line, str(why))
            return None

    def __call__(self, given: Sequence[int], base: int, stream: int) -> None:
        """Make all launches of a call on a stream."""
        buffer = self._filled(given, base, stream)
        for call in buffer.calls:
            code = call()
            if code:
                self._again(code, call, self.launches[buffer.calls.index(call)].kernel.name)
        self.free[buffer.place] = buffer

    def one_by_one(self, given: Sequence[int], base: int, stream: int) -> Iterator[Launch]:
        """The same, a launch at a time."""
        buffer = self._filled(given, base, stream)
        for launch, call in zip(self.launches, buffer.calls, strict=True):
            code = call()
            if code:
                self._again(code, call, launch.kernel.name)
            yield launch
        self.free[buffer.place] = buffer

    def _filled(self, given: Sequence[int], base: int, stream: int) -> ParameterBuffer:
        """A buffer for a call alone, with its addresses."""
        try:
            buffer = self.free.pop((base, stream))
        except KeyError:
            buffer = self._moved(given, base, stream)
        self.layout.pack_given(buffer.view, 0, *given)
        for each in buffer.of_given:
            each.follow(given)
        return buffer

    def _moved(self, given: Sequence[int], base: int, stream: int) -> ParameterBuffer:
        """A buffer for a place that none is for: to fill a new one takes far longer than a call."""
        try:
            known = self.free.popitem() if len(self.free) >= PLACES else None
        except KeyError:  # other threads have them all
            known = None
        buffer = known[1] if known else ParameterBuffer(self.layout)
        buffer.move(given, base, stream)
        return buffer

    def _again(self, code: int, call: Callable[[], int], name: str) -> None:
        """A launch that failed: once more where it is the thread's first, and finds no context."""
        if code == driver.INVALID_CONTEXT:
            driver.make_current(self.device)
            code = call()
        if code:
            raise driver.error(code, f"launching {name}")


def watched() -> bool:
    """Whether somebody is to be told of launches, such as a profiler: Triton tells them."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is None:  # nobody has asked Triton for anything
        return False
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
