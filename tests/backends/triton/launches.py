"""Jobs of ``test_parameters.py``, as a script: launches for a CUDA driver that only looks at them.

``stub/libcuda.c`` takes the driver's place for this whole process. Above it, Triton's own launcher
is the real one, so what the fast way passes can be compared with what Triton passes, bit for bit.
Tensors are on the CPU, and pose as others.
"""

import ctypes
import logging
import os
import struct
import sys
import threading
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

STUB = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # before anything looks for the driver

import torch  # noqa: E402
import triton  # noqa: E402
from child import serve  # noqa: E402
from torch import Tensor  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia import driver as nvidia  # noqa: E402

from transfuse.backends.base import prepared  # noqa: E402
from transfuse.backends.triton import (  # noqa: E402
    Triton,
    calls,
    driver,
    machine_code,
    parameters,
    sequence,
    tuned_files,
)
from transfuse.backends.triton.gpu import Gpu  # noqa: E402
from transfuse.backends.triton.launch_plan import LaunchPlan  # noqa: E402
from transfuse.backends.triton.parameters import ParameterBuffers  # noqa: E402
from transfuse.chain import Chain  # noqa: E402
from transfuse.elements import ELEMENTS  # noqa: E402
from transfuse.log import _said  # noqa: E402
from transfuse.problem import Problem  # noqa: E402

STREAM = 0x5EA


class Driver:
    """Triton's, as far as it does not ask torch about GPUs."""

    def __init__(self, capability: int) -> None:
        self.utils, self.launcher_cls = nvidia.CudaUtils(), nvidia.CudaLauncher
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class Seen:
    """A launch as the driver sees it."""

    function: str
    config: tuple[Any, ...]
    parameters: tuple[bytes, ...]


seen: list[Seen] = []
names: dict[int, str] = {}
rooms: dict[int, list[int]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def look(config: int, function: int, parameters: Any) -> None:
    told = driver.LaunchConfig.from_address(config)
    values = (told.grid[:], told.block[:], told.shared, told.stream, told.count)
    time.sleep(0)  # another thread's turn: what it writes meanwhile shows
    passed = [ctypes.string_at(parameters[i], n) for i, n in enumerate(rooms[function])]
    seen.append(Seen(names[function], values, tuple(passed)))


@ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p)
def loaded(function: int, code: int, name: bytes) -> None:
    names[function], rooms[function] = name.decode(), room(code, name)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
def parameter(function: int, index: int) -> int:
    return rooms[function][index] if index < len(rooms[function]) else -1


def room(code: int, name: bytes) -> list[int]:
    """Bytes of each parameter of a kernel, as its machine code has them for the driver."""
    start, size, count, texts = struct.unpack_from("<Q10xHHH", ctypes.string_at(code, 64), 40)
    heads = [
        struct.unpack("<IIQQQQ", ctypes.string_at(code + start + size * each, 40))
        for each in range(count)
    ]
    named = code + heads[texts][4]
    (facts,) = (
        ctypes.string_at(code + head[4], head[5])
        for head in heads
        if ctypes.string_at(named + head[0]) == b".nv.info." + name
    )
    found, at = {}, 0
    while at < len(facts):
        form, what, length = struct.unpack_from("<BBH", facts, at)
        if (form, what) == (4, 0x17):  # EIATTR_KPARAM_INFO
            ordinal, flags = struct.unpack_from("<H2xI", facts, at + 8)
            found[ordinal] = flags >> 18
        at += 4 + (length if form == 4 else 0)
    return [found[ordinal] for ordinal in sorted(found)]


@dataclass
class Made:
    """A launch plan that has run once, and what it ran on."""

    launch_plan: LaunchPlan
    tensors: list[Tensor]
    scratch: Tensor

    @property
    def given(self) -> list[int]:
        return [each.data_ptr() for each in self.tensors]

    @property
    def offsets(self) -> list[int]:
        return [at for at, _, _ in self.launch_plan.scratch]

    def buffers(self) -> ParameterBuffers | None:
        return ParameterBuffers.of(self.launch_plan.launches, 0, len(self.given), self.offsets)

    def ordinary(self, base: int, stream: int) -> None:
        """What Triton's own launcher does."""
        memory = [*self.given, *(base + at for at in self.offsets)]
        for launch in self.launch_plan.launches:
            launch.by_triton()(memory, stream)


def make(stages: tuple[Any, ...], problem: Problem, capability: int = 90) -> Made:
    triton.runtime.driver.set_active(Driver(capability))
    gpu = Gpu(capability, 132)
    calls._gpu = lambda device: gpu  # type: ignore[assignment]
    sequence.capability = lambda device: capability  # type: ignore[assignment]
    calls._ready.clear()
    machine_code._loaded.clear()
    chain, problem = Chain(*stages), replace(problem, device=f"cuda:sm{capability}")

    def tensor(*dims: int) -> Tensor:
        return torch.zeros(dims, dtype=ELEMENTS[problem.dtype].dtype)

    operands = {name: tensor(*dims) for name, dims in chain.dims(problem)}
    x, weight = tensor(*problem.input.dims), tensor(*problem.weight)
    out = Triton().run(chain, problem, x, weight, operands)
    (ready,) = calls._ready.values()
    scratch = torch.empty(ready.launch_plan.bytes + 8192, dtype=torch.uint8)
    return Made(ready.launch_plan, [x, weight, out, *operands.values()], scratch)


def looked(call: Any, *args: Any) -> list[Seen]:
    seen.clear()
    call(*args)
    return list(seen)


def same(**job: Any) -> dict[str, Any]:
    """Both ways, at two places of scratch memory and again at the first: is it the same?"""
    made = make(**job)
    buffers = made.buffers()
    assert buffers is not None
    bases = [-(-made.scratch.data_ptr() // 512) * 512 + n for n in (0, 4096, 0)]
    pairs = []
    for turn, base in enumerate(bases):
        call = base, STREAM + turn % 2
        pairs.append((looked(buffers, made.given, *call), looked(made.ordinary, *call)))
    return {
        "kernels": [launch.kernel.name for launch in made.launch_plan.launches],
        "launched": [len(ours) for ours, _ in pairs],
        "same": [ours == theirs for ours, theirs in pairs],
        "moved": pairs[0][0] != pairs[1][0],
        "maps": sum(
            len(each) == driver.MAP for launch in pairs[0][0] for each in launch.parameters
        ),
    }


def again(**job: Any) -> dict[str, Any]:
    """A call that is settled, on tensors at other places: some are no multiples of 16.

    ``functions``: of Python that a call enters, by name; ``plans``: launch plans in the end.
    """

    def made_ready(launches: Any, tensors: Any, scratch: Tensor) -> bool:
        launches.build(launches._memory(tensors, scratch), 90)
        offsets = [at for at, _, _ in launches.scratch]
        launches.buffers = ParameterBuffers.of(launches.launches, 0, len(tensors), offsets)
        launches.ready = True
        return True

    right = sequence.Sequence._made_ready, sequence._memory
    made = make(**job)
    calls._ready.clear()
    memory = made.scratch.untyped_storage()
    sequence.Sequence._made_ready = made_ready  # type: ignore[method-assign]
    sequence._memory = lambda size, device: memory
    torch._C._cuda_getCurrentRawStream = lambda index: STREAM
    chain = Chain(*job["stages"])
    problem = replace(job["problem"], device="cuda:sm90")
    x, weight, out, *operands = made.tensors
    named = dict(zip((name for name, _ in chain.dims(problem)), operands, strict=True))
    off = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    run = prepared(Triton(), chain, problem)
    settled: Any = run.like(x, weight, named, None)  # type: ignore[attr-defined]
    same = []
    try:
        for each in (x, x, off, off, x, x.clone()):
            ours = looked(settled, each, weight, named, out)
            launch_plan, _, _ = settled.known
            given = [t.data_ptr() for t in (each, weight, out, *operands)]
            scratch = [memory.data_ptr() + at for at, _, _ in launch_plan.scratch]
            theirs = []
            for launch in launch_plan.launches:
                theirs += looked(launch.by_triton(), [*given, *scratch], STREAM)
            same.append(ours == theirs)
        STUB.stub_seen(None)
        tuned_files.refresh()  # as it is once a second
        functions: list[str] = []
        sys.setprofile(
            lambda frame, event, _: (
                functions.append(frame.f_code.co_name) if event == "call" else None
            )
        )
        settled(x, weight, named)
        sys.setprofile(None)
    finally:
        STUB.stub_seen(look)
        sequence.Sequence._made_ready, sequence._memory = right  # type: ignore[method-assign]
    return {"same": same, "functions": functions, "plans": len(calls._ready)}


def threads(**job: Any) -> dict[str, Any]:
    """Several threads call at once, some for the same memory: each call's launches are its own."""
    made = make(**job)
    buffers = made.buffers()
    assert buffers is not None
    base, calls, count = made.scratch.data_ptr(), 40, 4
    raised: list[BaseException] = []

    def work(which: int) -> None:
        try:
            for turn in range(calls):
                first = 1024 * (which * calls + turn + 1)
                buffers([first + 16 * at for at in range(len(made.given))], base, STREAM)
        except BaseException as error:
            raised.append(error)

    seen.clear()
    workers = [threading.Thread(target=work, args=(which,)) for which in range(count)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    # The kernel pack takes x first and the weight third.
    passed = [each.parameters for each in seen if each.function == "pack"]
    places = [[int.from_bytes(each[at], "little") for at in (0, 2)] for each in passed]
    return {
        "raised": list(map(repr, raised)),
        "launched": len(seen) == count * calls * len(made.launch_plan.launches),
        "mixed": sum(weight != x + 16 for x, weight in places),
        "calls": len({x for x, _ in places}),
        "kept": len(buffers.free),
    }


def failing(code: int, **job: Any) -> dict[str, Any]:
    """What the driver refuses is raised, and the next call is as ever."""
    made = make(**job)
    buffers = made.buffers()
    assert buffers is not None
    call = made.given, made.scratch.data_ptr(), STREAM
    right = looked(buffers, *call)
    STUB.stub_answer(code)
    try:
        buffers(*call)
        raised = ""
    except RuntimeError as error:
        raised = str(error)
    finally:
        STUB.stub_answer(0)
    return {"raised": raised, "after": looked(buffers, *call) == right}


def fresh(**job: Any) -> bool:
    """A thread in which no device is current yet: every launch is made once, the same way."""
    made = make(**job)
    buffers = made.buffers()
    call = made.scratch.data_ptr(), STREAM
    right = looked(made.ordinary, *call)
    seen.clear()
    worker = threading.Thread(target=buffers, args=(made.given, *call))
    worker.start()
    worker.join()
    return seen == right


def watched(hook: str, chained: bool, **job: Any) -> dict[str, Any]:
    """A profiler is told of every launch; without one, Triton's launcher is idle."""
    made = make(**job)
    launch_plan = made.launch_plan
    launch_plan.ready, launch_plan.buffers = True, made.buffers()
    torch._C._cuda_getCurrentRawStream = lambda index: STREAM
    ran: list[str] = []
    for launch in launch_plan.launches:
        make_run, launch.by_triton = launch.by_triton, None  # type: ignore[assignment, method-assign]
        launch.by_triton = lambda run=make_run: (ran.append("by Triton"), run())[1]  # type: ignore[method-assign]
    told: list[Any] = []
    chain = getattr(knobs.runtime, hook)
    alone = len(looked(launch_plan, made.tensors)), len(ran)
    if chained:
        chain.add(told.append)
    else:
        setattr(knobs.runtime, hook, told.append)
    ran.clear()
    try:
        with_hook = len(looked(launch_plan, made.tensors)), len(ran)
    finally:
        if chained:
            chain.remove(told.append)
        setattr(knobs.runtime, hook, chain)
    return {
        "launches": len(launch_plan.launches),
        "alone": alone,
        "hooked": with_hook,
        "told": len(told),
    }


SIZES = {
    "one more": lambda sizes: [*sizes, 8],
    "one less": lambda sizes: sizes[:-1],
    "another": lambda sizes: [4, *sizes[1:]],
}
"""What a driver may say of parameters."""


class Lines(logging.Handler):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def strange(
    changes: dict[str, Any], sizes: str = "", lacking: str = "", **job: Any
) -> dict[str, Any]:
    """A kernel whose facts are other ones: whether Triton launches it, and what the log says.

    ``changes``: what Triton knows of it; ``sizes``: what the driver says of its parameters.
    """
    made = make(**job)
    launch_plan, launch = made.launch_plan, made.launch_plan.launches[-1]
    assert made.buffers() is not None
    machine_code._loaded.clear()
    compile_, right, whole = triton.compile, driver.parameters, driver.lacking

    def changed(source: Any, **options: Any) -> Any:
        found = compile_(source, **options)
        if source.fn is not launch.kernel.function:
            return found
        known = SimpleNamespace(**found.metadata._asdict() | changes)
        return SimpleNamespace(asm=found.asm, metadata=known)

    triton.compile = changed
    if sizes:
        driver.parameters = lambda function: SIZES[sizes](right(function))
    driver.lacking = lambda: lacking or whole()  # type: ignore[assignment]
    _said.clear()
    log, logger = Lines(), logging.getLogger("transfuse")
    logger.addHandler(log)
    try:
        launch_plan.ready, launch_plan.buffers = True, made.buffers()
        made.buffers()
    finally:
        logger.removeHandler(log)
        triton.compile, driver.parameters, driver.lacking = compile_, right, whole
        machine_code._loaded.clear()
    torch._C._cuda_getCurrentRawStream = lambda index: STREAM
    return {
        "buffers": launch_plan.buffers is not None,
        "launched": len(looked(launch_plan, made.tensors)) == len(launch_plan.launches),
        "log": [line for line in log.lines if "launcher" in line],
    }


class NoDriver:
    """Triton's driver, which takes a C compiler to make: nobody is to ask for it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Triton's driver is asked for {name}")


def stored(folder: str, refused: bool = False, **job: Any) -> dict[str, Any]:
    """Launches from the store alone: the same ones, with no compiler of any kind.

    ``refused``: the driver does not take what is stored, which is then compiled again.
    """
    right_load, compile_ = driver.load, triton.compile
    compiled: list[str] = []

    def load(code: bytes, *rest: Any) -> int:
        if refused and not compiled:
            raise driver.DriverError("no binary for this GPU")
        return right_load(code, *rest)

    def compiling(source: Any, **options: Any) -> Any:
        compiled.append(source.fn.__name__)
        assert refused, f"{source.fn.__name__} is compiled"
        return compile_(source, **options)

    os.environ["TRANSFUSE_KERNELS"] = folder
    try:
        made = make(**job)
        base = made.scratch.data_ptr()
        right = looked(made.ordinary, base, STREAM)
        active = triton.runtime.driver.active
        triton.runtime.driver.set_active(NoDriver())
        machine_code._loaded.clear()
        for launch in made.launch_plan.launches:  # what was compiled is forgotten
            launch.built = replace(launch.built)
        driver.load, triton.compile = load, compiling
        _said.clear()
        log, logger = Lines(), logging.getLogger("transfuse")
        logger.addHandler(log)
        buffers = made.buffers()
        assert buffers is not None
        again = looked(buffers, made.given, base, STREAM)
    finally:
        driver.load, triton.compile = right_load, compile_
        os.environ["TRANSFUSE_KERNELS"] = os.path.join(os.devnull, "kernels")
    logger.removeHandler(log)
    triton.runtime.driver.set_active(active)
    return {
        "same": again == right,
        "launched": len(again),
        "compiled": sorted(compiled),
        "log": log.lines,
        "files": len(os.listdir(folder)),
    }


def places(count: int, **job: Any) -> dict[str, Any]:
    """How many places buffers are kept for, after as many calls at places of their own.

    ``made``: buffers made anew; ``same``: whether each call's launches were the right ones.
    """
    made = make(**job)
    buffers = made.buffers()
    assert buffers is not None
    base, kept, fresh, right = made.scratch.data_ptr(), [], 0, []
    make_one = parameters.ParameterBuffer

    def counted(layout: parameters.Layout) -> parameters.ParameterBuffer:
        nonlocal fresh
        fresh += 1
        return make_one(layout)

    parameters.ParameterBuffer = counted  # type: ignore[assignment, misc]
    try:
        for turn in range(count):
            call = base + 512 * (turn % 7), turn
            right.append(looked(buffers, made.given, *call) == looked(made.ordinary, *call))
            kept.append(len(buffers.free))
    finally:
        parameters.ParameterBuffer = make_one  # type: ignore[misc]
    return {"kept": kept, "made": fresh, "same": all(right)}


JOBS = {
    each.__name__: each
    for each in (same, again, threads, failing, fresh, watched, strange, stored, places)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    STUB.stub_code(loaded, parameter)
    STUB.stub_seen(look)
    serve(lambda do, **job: JOBS[do](**job))
