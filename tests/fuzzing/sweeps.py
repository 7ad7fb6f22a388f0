"""Sweeps for the core, as Python would hand them over."""

import ctypes
from collections.abc import Sequence
from math import prod

import torch

from tests.fuzzing.calls import (
    COMPUTED,
    Wrong,
)
from tests.fuzzing.drawing import Maker, describe
from tests.fuzzing.programs import fields_of
from transfuse.backends.cpu import library
from transfuse.backends.cpu.bytecode import PRIMITIVES


def of_sweeps(make: Maker) -> str:
    """Sweeps with fields that no caller should write: kinds, counts, sizes, strides, code."""
    random = make.random
    core = library.load()
    assert core is not None
    kind = random.randrange(3)
    kept = (random.randint(2, 4), random.randint(1, 3), 5)[kind]
    folded = random.randint(1, 3) if kind == 1 else 0
    limits = {"inputs": (1, 6), "kernel": (1, 3), "stride": (1, 3), "padding": (0, 1)}
    windows = {name: make.axes(3, *limit) for name, limit in limits.items()}
    sizes = list(make.axes(kept + folded, 1, 6))
    if kind == 2 and random.random() < 0.9:
        for a, (n, k, s, p) in enumerate(zip(*windows.values(), strict=True)):
            sizes[2 + a] = max(1, (n + 2 * p - k) // max(1, s) + 1)
    read = (*sizes[:2], *windows["inputs"]) if kind == 2 else tuple(sizes)
    folding = random.choice(((0,), range(8), (0, 1, 2, 8))[kind])
    before, after = _code(make), _code(make)
    if kind and random.random() < 0.4:
        before = None
    if (
        kind == 0
        or library.FOLDINGS[folding] in ("exponentials", "moments")
        or random.random() < 0.4
    ):
        after = None
    others = (after.operands_count if after else 0) + (kind == 2 and folding == 8)
    values = [_view(make, read) for _ in range(min(9, before.operands_count) if before else 1)]
    beside = [_view(make, sizes[:kept]) for _ in range(min(9, others))]
    outs = [_view(make, sizes[:kept], dense=True) for _ in range(2)]
    dims = [read] * len(values) + [tuple(sizes[:kept])] * (len(beside) + 2)
    sweep = library.Sweep(
        kind=_low(kind if random.random() < 0.97 else make.number(0, 3)),
        folding=_low(folding if random.random() < 0.97 else make.number(0, 9)),
        kept=_low(kept if random.random() < 0.97 else make.number(0, 9)),
        folded=_low(folded if random.random() < 0.97 else make.number(0, 9)),
        across=random.choice((0, 0, 1, -1)),
        sizes=library.Axes(*(_wide(size) for size in sizes)),
        values_count=len(values) if random.random() < 0.97 else _low(make.number(-1, 3)),
        others_count=len(beside) if random.random() < 0.97 else _low(make.number(-1, 3)),
        before=before and ctypes.pointer(before),
        after=after and ctypes.pointer(after),
        **{name: library.Sizes(*map(_wide, each)) for name, each in windows.items()},
        dilation=library.Sizes(*(1, 1, 1) if random.random() < 0.7 else make.axes(3, 1, 2)),
        adaptive=random.choice((0, 0, 0, 1)),
        counts_padding=random.choice((0, 1)),
        divisor=random.choice((0.0, 3.0)),
    )
    described = {k: v for k, v in fields_of(sweep).items() if k not in ("values", "others", "outs")}
    describe(f"sweep {described} views {[fields_of(each) for each in (*values, *beside, *outs)]}")
    all_views = [*values, *beside, *outs]
    spans = [
        1 + sum((n - 1) * s for n, s in zip(each, view.strides, strict=False) if n > 0)
        for each, view in zip(dims, all_views, strict=True)
    ]
    # Views are exactly as long as the sizes say, where no number was changed behind their back.
    small = max(map(abs, (*spans, prod(map(abs, sizes)), prod(map(abs, read))))) <= COMPUTED
    straight = (sweep.kind, sweep.kept, sweep.folded) == (kind, kept, folded)
    straight = straight and sweep.folding == folding and sweep.values_count == len(values)
    straight = straight and sweep.others_count == len(beside)
    memory = [
        torch.ones(
            span if small and straight else 1, dtype=_DTYPES.get(view.element, torch.float64)
        )
        for span, view in zip(spans, all_views, strict=True)
    ]
    for view, tensor in zip(all_views, memory, strict=True):
        view.data = tensor.data_ptr()
    sweep.values, sweep.others = (
        (library.View * max(1, len(each)))(*each) for each in (values, beside)
    )
    sweep.outs = (library.View * 2)(*outs)
    if random.random() < 0.02:
        setattr(sweep, random.choice(("values", "others", "before")), None)
    # Without a thread nothing runs: a sweep in order is told by what is wrong then.
    if not core.transfuse_sweep_run(sweep, 0):
        raise Wrong("a sweep ran without a thread")
    if b"threads must be" not in core.transfuse_message():
        if not core.transfuse_sweep_run(sweep, 1):
            raise Wrong("a sweep was refused and then run")
        return "refused"
    if not (small and straight):
        return "left out"
    if core.transfuse_sweep_run(sweep, random.choice((1, 2, 3))):
        raise Wrong(f"a sweep in order failed: {core.transfuse_message().decode()}")
    results = {len(all_views) - 2, len(all_views) - 1}
    for number, tensor in enumerate(memory):
        if number not in results and not bool((tensor == 1).all()):
            raise Wrong(f"view {number}, which is read, was written")
    return "ran"


_DTYPES = {0: torch.float32, 1: torch.float64, 2: torch.float16, 3: torch.bfloat16}


def _low(value: int) -> int:
    """A number in the 32 bits of a field."""
    return (value + 2**31) % 2**32 - 2**31


def _wide(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def _view(make: Maker, sizes: Sequence[int], dense: bool = False) -> library.View:
    """Axes one after another, or in any order with gaps, or with one value along some."""
    strides, step = [0] * len(sizes), 1
    order = list(range(len(sizes)))
    make.random.shuffle(order)
    for a in order:
        if dense or make.random.random() < 0.8:
            strides[a] = step
            step *= max(1, sizes[a]) + make.random.choice((0, 0, 1))
    if make.extremes and make.random.random() < 0.05:
        strides[make.random.randrange(len(sizes))] = make.number(0, 3, 0.8)
    element = make.random.randrange(4) if make.random.random() < 0.98 else _low(make.number(0, 5))
    return library.View(element, None, library.Axes(*map(_wide, strides)))


def _code(make: Maker) -> library.Code:
    """Some instructions over a number or two, operands and registers; now and then beyond them."""
    random = make.random
    numbers, operands, registers = (random.randint(0, 2) for _ in range(3))
    length = random.randint(1, 4) if registers else 1
    first = 1 + numbers + operands
    three = ctypes.c_uint16 * 3

    def place(low: int, high: int) -> int:
        return (
            random.randint(low, high)
            if random.random() < 0.995
            else random.choice((high + 1, 65535))
        )

    steps = [
        library.Instruction(
            random.randrange(len(PRIMITIVES)) if random.random() < 0.995 else 65535,
            place(first, first + registers - 1) if i + 1 < length else place(0, 0),
            three(*(place(min(1, first + registers - 1), first + registers - 1) for _ in range(3))),
        )
        for i in range(length)
    ]
    code = library.Code(
        numbers, operands, registers, length,
        (ctypes.c_double * 2)(0.5, -2.0), (library.Instruction * length)(*steps),
    )  # fmt: skip
    if random.random() < 0.02:
        name = random.choice(("numbers_count", "operands_count", "registers_count", "length"))
        setattr(code, name, random.choice((-1, 0, 2**31 - 1, -(2**31), 70000)))
    return code
