"""Programs for the core, as Python would hand them over."""

import ctypes
from math import prod
from typing import Any

import torch

from tests.fuzzing.calls import (
    COMPUTED,
    Wrong,
)
from tests.fuzzing.drawing import Maker, describe
from transfuse.backends.cpu import library


def of_programs(make: Maker) -> str:
    """Programs with fields that no caller should write: codes, counts, pointers, steps."""
    random = make.random
    core = library.load()
    assert core is not None
    steps = [_step(make) for _ in range(random.choice((0, 0, 1, 2, 3, 5)))]
    array = (library.Step * max(1, len(steps)))(*steps)
    first = [_step(make) for _ in range(random.choice((0, 0, 0, 1, 2)))]
    three = {name: library.Sizes(*make.axes(3, *limits)) for name, limits in _LIMITS.items()}
    element = random.choice((0, 1, 2, 3, make.number(0, 3) % 2**32))
    program = library.Program(
        element=element,
        input_element=element,
        output_element=element,
        operands=element if random.random() < 0.9 else 0,
        batch=make.number(1, 2),
        in_channels=make.number(1, 6),
        out_channels=make.number(1, 18),
        groups=make.number(1, 1),
        before_count=len(first) if random.random() < 0.95 else random.choice((-1, -(2**31))),
        before=(library.Step * max(1, len(first)))(*first),
        steps_count=len(steps) if random.random() < 0.95 else random.choice((-1, -(2**31))),
        steps=array,
        weight_scale=1,
        **three,
    )
    if random.random() < 0.03:
        program.steps = None
    if random.random() < 0.03:
        program.before = None
    before, after = ([*map(fields_of, each)] for each in (first, steps))
    describe(f"program {fields_of(program)} before {before} steps {after}")
    threads = random.choice((1, 2, 3, make.number(-1, 4)))
    threads = (threads + 2**31) % 2**32 - 2**31
    pointer = ctypes.byref(program) if random.random() < 0.99 else None
    try:
        bytes_ = core.transfuse_packed_bytes(pointer)
    except RuntimeError:
        # What it refuses, the others refuse, too, before they look at any address.
        strides = library.Strides(1, 1, 1, 1, 1)
        if not core.transfuse_pack(pointer, 64, strides, threads, 64) or not core.transfuse_run(
            pointer, threads
        ):
            raise Wrong("a program was refused and then run") from None
        return "refused"
    if bytes_ > 2**26:
        return "left out"
    item = (4, 8, 2, 2)[program.element]
    weights = torch.zeros(program.in_channels * program.out_channels // program.groups
                          * prod(program.kernel) * item, dtype=torch.uint8)  # fmt: skip
    packed = torch.empty(bytes_, dtype=torch.uint8)
    dims = (program.in_channels, program.out_channels // program.groups, *program.kernel)
    library.check(
        core,
        core.transfuse_pack(
            pointer, weights.data_ptr() or 64, _strides(dims), 2, packed.data_ptr() or 64
        ),
    )
    shape = _last(program, first, steps)
    given = (program.batch, program.in_channels, *program.spatial)
    if max(map(prod, (given, *shape))) > COMPUTED:
        return "left out"
    kind = torch.float64 if item == 8 else torch.float32 if item == 4 else torch.float16
    x, out = torch.zeros(prod(given), dtype=kind), torch.zeros(prod(shape[-1]), dtype=kind)
    same = program.operands == program.element
    operand = torch.ones(program.out_channels, dtype=kind if same else torch.float32)
    for step in array:
        step.t0 = step.t1 = operand.data_ptr()
    program.weights = packed.data_ptr() or 64
    program.input, program.output = x.data_ptr(), out.data_ptr()
    program.input_strides, program.output_strides = _strides(given), _strides(shape[-1])
    missing = random.random() < 0.1
    if missing:
        setattr(program, random.choice(("weights", "input", "output")), None)
    status = core.transfuse_run(pointer, threads)
    expected = threads < 1 or (missing and program.batch > 0)
    if bool(status) != expected:
        raise Wrong(f"status {status}: {core.transfuse_message().decode()}")
    return "refused" if status else "ran"


_LIMITS = {
    "spatial": (1, 4),
    "kernel": (1, 3),
    "stride": (1, 3),
    "padding": (-2, 1),
    "dilation": (1, 2),
    "output_padding": (-1, 2),
}


def _step(make: Maker) -> library.Step:
    op = make.random.choice(
        (make.random.randrange(9), make.random.randrange(9), make.number(0, 20))
    )
    kernel = make.axes(3, 1, 2)
    stride, padding = make.axes(3, 1, 2), make.axes(3, 0, 0)
    f0 = make.random.choice((0.0, 1.0, -3.5))
    low = (op + 2**31) % 2**32 - 2**31
    sizes = (library.Sizes(*v) for v in (kernel, stride, padding))
    return library.Step(low, make.number(0, 2), *sizes, f0, 1.0, None, None)


def fields_of(structure: ctypes.Structure) -> dict[str, Any]:
    values = {each[0]: getattr(structure, each[0]) for each in structure._fields_}
    return {k: list(v) if hasattr(v, "_length_") else v for k, v in values.items()}


def _strides(dims: tuple[int, ...]) -> Any:
    return library.Strides(*(prod(dims[i + 1 :]) for i in range(5)))


def _last(
    program: library.Program, first: list[library.Step], steps: list[library.Step]
) -> list[tuple[int, ...]]:
    """The values of a legal program: after the pool, the convolution and every step."""
    extents, channels = list(program.spatial), program.in_channels
    found: list[tuple[int, ...]] = []

    def pool(step: library.Step) -> None:
        for a in range(3):
            rest = extents[a] + 2 * step.padding[a] - step.kernel[a]
            extents[a] = rest // step.stride[a] + 1

    for step in first:
        pool(step)
        found.append((program.batch, channels, *extents))
    for a in range(3):
        extents[a] = (extents[a] - 1) * program.stride[a] - 2 * program.padding[a]
        extents[a] += program.dilation[a] * (program.kernel[a] - 1) + program.output_padding[a] + 1
    channels = program.out_channels
    found.append((program.batch, channels, *extents))
    for step in steps[: program.steps_count]:
        name = library.OPS[step.op]
        if name.endswith("_pool"):
            pool(step)
        channels = 1 if name == "sum" else channels
        found.append((program.batch, channels, *extents))
    return found
