"""Calls with extreme integers and odd tensors, from Python and from C: none may end the process.

    python tests/fuzz.py --calls 100000 --seed 0

Every call is made of (seed, number) alone. A call that is legal must give the right result; one
that is not must raise what torch would, or give 1, and leave the output as it was. The calls run in
a child process: where it dies or hangs, the call is printed with the command that repeats it, and
another child goes on after it. ``TRANSFUSE_CORE`` names a core with sanitizers.
"""

import argparse
import ctypes
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from random import Random
from select import select
from typing import Any

import torch
from torch import Tensor

from transfuse import conv_transpose
from transfuse.backends import BACKENDS
from transfuse.backends.cpu import library
from transfuse.backends.cpu.bytecode import PRIMITIVES
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problem import DTYPES, Problem, Shape
from transfuse.problems import document
from transfuse.stages import (
    ConvTranspose,
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum
from transfuse.stages.window import AvgPool, Window

EDGES = (0, 1, 2**15, 2**16, 2**22, *(2**n for n in range(30, 34)), 2**48, 2**62, 2**63, 2**64)
EXTREME = sorted(
    {edge + off for edge in EDGES for off in (-2, -1, 0, 1, 2)}
    | {-(2**31), -(2**32), -(2**63), -(2**64), 7919, 104729, 2147483629, 2305843009213693951}
)
INT32, MOST = 2**31 - 1, 2**48
COMPUTED = 2**16
"""Elements between two stages that a call may have to be run."""
ALLOCATED = 2**33
"""Elements that are too many for the child's memory: to ask for them must raise."""
ALLOWED = (RuntimeError, TypeError, ValueError, NotImplementedError)
SUFFIXES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bf16": "bf16"}
CLOSE = {"fp32": 2e-4, "fp64": 1e-9, "fp16": 2e-2, "bf16": 1e-1}
OPTIONS = ("stride", "padding", "dilation", "output_padding")


class Wrong(Exception):
    """A call did what it must not do."""


# ---- what a call should do -------------------------------------------------------------------


@dataclass
class Call:
    """One convolution within stages: everything that tells what comes of it."""

    rank: int
    batch: int
    in_channels: int
    out_channels: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    dtype: str
    options: dict[str, tuple[int, ...]]
    after: tuple[int, ...] | None = None  # padding at the end, where it is given in pairs
    before: list[Stage] = field(default_factory=list)
    then: list[Stage] = field(default_factory=list)

    def shapes(self) -> list[Shape] | None:
        """The values before, between and after the stages; None for a call that is not legal."""
        shape = Shape(self.batch, self.in_channels, self.spatial)
        found = [shape]
        for stage in (*self.before, None, *self.then):
            step = self._convolved(shape) if stage is None else _staged(stage, shape)
            if step is None or prod(max(1, size) for size in step.dims) > MOST:
                return None
            found.append(shape := step)
        return found

    def _convolved(self, shape: Shape) -> Shape | None:
        counts = (self.in_channels, self.out_channels, *self.spatial, *self.kernel, self.groups)
        weight = (self.in_channels, self.out_channels, *self.kernel)
        if self.batch < 0 or min(counts) < 1 or prod(weight) > MOST or prod(self.kernel) > INT32:
            return None
        if self.in_channels % self.groups or self.out_channels % self.groups:
            return None
        spatial = []
        each = zip(shape.spatial, self.kernel, *(self.options[o] for o in OPTIONS), strict=True)
        least = 0 if self.after is None else -INT32
        for a, (n, k, stride, padding, dilation, extra) in enumerate(each):
            after = padding if self.after is None else self.after[a]
            if not (1 <= stride <= INT32 and 1 <= dilation <= INT32):
                return None
            if not (least <= padding <= INT32 and least <= after <= INT32):
                return None
            size = (n - 1) * stride - padding - after + dilation * (k - 1) + extra + 1
            if not 0 <= extra < max(stride, dilation) or size < 1:
                return None
            spatial.append(size)
        return Shape(shape.n, self.out_channels, tuple(spatial))

    def result(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, env: dict[str, Tensor]
    ) -> Tensor:
        """The values in float64, by the definition."""
        y = x.double()
        for stage in self.before:
            y = _applied(stage, y, env)
        y = self._sum(y, weight.double())
        if bias is not None:
            y = y + bias.double().reshape(1, -1, *[1] * self.rank)
        for stage in self.then:
            y = _applied(stage, y, env)
        return y

    def _sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """Every output from each (input, tap) that meets in it: o = i * s - p + k * d."""
        meets = []
        for a in range(self.rank):
            stride, padding, dilation, extra = (self.options[o][a] for o in OPTIONS)
            n, k = x.shape[2 + a], self.kernel[a]
            after = padding if self.after is None else self.after[a]
            size = (n - 1) * stride - padding - after + dilation * (k - 1) + extra + 1
            found = torch.zeros(size, n, k, dtype=torch.float64)
            for i in range(n):
                for tap in range(k):
                    o = i * stride - padding + tap * dilation
                    if 0 <= o < size:
                        found[o, i, tap] = 1
            meets.append(found)
        group = (self.groups, self.in_channels // self.groups)
        y = x.reshape(x.shape[0], *group, *x.shape[2:])
        w = weight.reshape(*group, *weight.shape[1:])
        sums = {1: "ngcx,gcdk,oxk->ngdo", 2: "ngcxy,gcdkl,oxk,pyl->ngdop"}
        sums[3] = "ngcxyz,gcdklm,oxk,pyl,qzm->ngdopq"
        return torch.einsum(sums[self.rank], y, w, *meets).flatten(1, 2)

    @property
    def exact(self) -> bool:
        return all(stage.exact for stage in (*self.before, *self.then))


def _staged(stage: Stage, shape: Shape) -> Shape | None:
    """A stage's output; pools by rules written out here."""
    if not isinstance(stage, Window):
        try:
            return stage.shape(shape)
        except ALLOWED:
            return None
    rank = len(shape.spatial)
    average = isinstance(stage, AvgPool)
    most = INT32 if average or rank > 1 else 2**62
    spatial = []
    for n, window in zip(shape.spatial, stage.windows(rank), strict=True):
        kernel, stride, padding = window
        if max(window) > most or min(kernel, stride) < 1 or not 0 <= padding <= kernel // 2:
            return None
        if n + 2 * padding < kernel or (average and rank == 3 and n < kernel):
            return None
        spatial.append((n + 2 * padding - kernel) // stride + 1)
    return shape._replace(spatial=tuple(spatial))


def _applied(stage: Stage, x: Tensor, env: dict[str, Tensor]) -> Tensor:
    """A stage's maths; pools axis by axis, with windows cut to the values there are."""
    if not isinstance(stage, Window):
        return stage.apply(x, dict(env))
    for a, (kernel, stride, padding) in enumerate(stage.windows(x.dim() - 2), 2):
        n = x.shape[a]
        count = (n + 2 * padding - kernel) // stride + 1
        firsts = [j * stride - padding for j in range(count)]
        spans = [x.narrow(a, max(0, i), min(n, i + kernel) - max(0, i)) for i in firsts]
        if isinstance(stage, AvgPool):
            parts = [span.sum(a, keepdim=True) / kernel for span in spans]
        else:
            parts = [span.amax(a, keepdim=True) for span in spans]
        x = torch.cat(parts, a)
    return x


def judge(call: Call, y: Tensor, expected: Tensor) -> None:
    if y.shape != expected.shape:
        raise Wrong(f"shape {list(y.shape)}, expected {list(expected.shape)}")
    if call.exact and not torch.equal(y.double(), expected.to(y.dtype).double()):
        raise Wrong(f"not exact: {y.flatten()[:8]} for {expected.flatten()[:8]}")
    bound = CLOSE[call.dtype] * (1 + expected.abs())
    if expected.numel() and not bool(((y.double() - expected).abs() <= bound).all()):
        raise Wrong(f"off by {float((y.double() - expected).abs().max())}")


# ---- calls -----------------------------------------------------------------------------------


class Maker:
    """Draws one call."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.extremes = random.choice((0, 0, 0, 1, 1, 2, 4))
        """How many numbers are extreme, about."""
        self.unsigned = False
        """Whether numbers are C's size_t: the low 64 bits."""

    def number(self, low: int, high: int, odds: float = 0.12) -> int:
        if self.extremes and self.random.random() < odds:
            self.extremes -= 1
            value = self.random.choice(EXTREME)
            return value % 2**64 if self.unsigned else value
        return self.random.randint(low, high)

    def axes(self, rank: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.number(low, high) for _ in range(rank))

    def options(self, rank: int) -> dict[str, tuple[int, ...]]:
        limits = {"stride": (1, 4), "padding": (0, 1), "dilation": (1, 2), "output_padding": (0, 0)}
        found = {name: self.axes(rank, *limits[name]) for name in OPTIONS}
        if self.random.random() < 0.2:  # what a wide step adds, a wide padding takes away
            a, wide = self.random.randrange(rank), self.random.choice((2**15, 2**22, 2**30, INT32))
            for name, value in (
                (self.random.choice(("stride", "dilation")), wide),
                ("padding", self.random.choice((wide // 2, wide - 1, 0))),
            ):
                found[name] = (*found[name][:a], value, *found[name][a + 1 :])
        return found

    def call(self) -> Call:
        random = self.random
        rank, groups = random.choice((1, 2, 3)), random.choice((1, 1, 1, 2, 3))
        most = (9, 5, 3)[rank - 1]
        return Call(
            rank=rank,
            batch=random.choice((0, 1, 1, 2, 3)),
            in_channels=groups * random.choice((1, 2, 5, 17)),
            out_channels=groups * random.choice((1, 2, 4, 5, 18)),
            spatial=tuple(random.choice((1, random.randint(1, most))) for _ in range(rank)),
            kernel=tuple(random.randint(1, 3) for _ in range(rank)),
            groups=groups,
            dtype=random.choice(DTYPES),
            options=self.options(rank),
        )

    def pool(self, rank: int) -> Stage:
        stage = self.random.choice((max_pool, avg_pool))
        kernel = self.number(1, 3, 0.3)
        if self.extremes and self.random.random() < 0.2:  # a window of padding, mostly
            kernel = self.random.choice((64, 2**20, 2**30, INT32 - 1, 2**40))
            return stage(kernel, self.number(1, 3, 0.3), kernel // 2)
        size = kernel if self.random.random() < 0.8 else (kernel,) * rank
        return stage(
            size, self.random.choice((None, self.number(1, 3, 0.3))), self.number(0, 1, 0.1)
        )

    def stages(self, rank: int, channels: int) -> list[Stage]:
        def values() -> Tensor:
            return self.values((channels,))

        return self.random.choice(
            [
                list,
                lambda: [self.pool(rank)],
                lambda: [self.pool(rank), self.pool(rank)],
                lambda: [add(values()), self.pool(rank)],
                lambda: [scale(self.random.choice((-2, 0.5, 4))), sigmoid()],
                lambda: [clamp(-2, 3), softmax("space")],
                lambda: [softmax("channels"), scale(3.0)],
                lambda: [self.pool(rank), channel_sum("channels", keepdim=True)],
                lambda: [group_norm(self.number(1, 3, 0.4)), tanh()],
                lambda: [batch_norm(None, None, values(), values(), True), self.pool(rank)],
            ]
        )()

    def values(self, shape: tuple[int, ...], dtype: str = "fp64") -> Tensor:
        generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        found = torch.randint(-2, 3, shape, generator=generator)
        return found.to(ELEMENTS[dtype].dtype)

    def odd(self, values: Tensor) -> Tensor:
        """The same values as another kind of tensor."""
        kind = self.random.choice(("", "", "", "steps", "offset", "neg", "turned", "last"))
        if kind == "steps":
            return torch.stack((values, values), -1)[..., 1]
        if kind == "offset":
            return torch.cat((values.flatten()[:1], values.flatten()))[-values.numel() :].view_as(
                values
            )
        if kind == "neg" and values.is_floating_point():
            return torch._neg_view(-values)
        if kind == "turned" and values.dim() > 1:
            return values.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == "last" and values.dim() == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return values


def from_python(make: Maker) -> str:
    """``conv_transpose`` with any stages, ``out`` and odd tensors."""
    random, call = make.random, make.call()
    call.before = random.choice(([], [], [make.pool(call.rank)]))
    call.then = make.stages(call.rank, call.out_channels)
    if random.random() < 0.3:
        call.options["padding"], call.after = (make.axes(call.rank, -3, 3) for _ in range(2))
    shapes = call.shapes()
    if shapes and any(COMPUTED < shape.numel <= ALLOCATED for shape in shapes):
        return "left out"
    if shapes and max(shape.numel for shape in shapes[:-1]) > COMPUTED:
        return "left out"  # long to compute, little to allocate
    x = make.values((call.batch, call.in_channels, *call.spatial), call.dtype)
    weight = make.values(
        (call.in_channels, call.out_channels // call.groups, *call.kernel), call.dtype
    )
    bias = random.choice((None, make.values((call.out_channels,), call.dtype)))
    shown, env = _typed(call, make)
    given = {"x": make.odd(x), "weight": make.odd(weight), "bias": bias}
    strange = random.random() < 0.06
    if strange:
        given["x"] = random.choice(
            (x.to(torch.int32), x.to(torch.complex64), x > 0, x[..., :0], None)
        )
    out = None
    fits = shapes is not None and shapes[-1].numel <= COMPUTED
    if random.random() < 0.4:
        dims = shapes[-1].dims if shapes is not None and fits else (1,) * (call.rank + 2)
        if random.random() < 0.1:
            dims = (*dims[:-1], dims[-1] + 1)
        out = make.odd(torch.full(dims, 77, dtype=x.dtype))
        fits = fits and shapes is not None and tuple(out.shape) == shapes[-1].dims
    options: dict[str, Any] = {
        name: (values[0] if len({*values}) == 1 else values)
        for name, values in call.options.items()
    }
    if call.after is not None:
        options["padding"] = tuple(zip(call.options["padding"], call.after, strict=True))
    backend = "cpu" if random.random() < 0.8 or call.dtype in ("fp16", "bf16") else None
    describe(
        f"{call} {list(map(str, shown))} out={None if out is None else list(out.shape)} {backend}"
    )
    for _ in range(2):  # the second time the call is remembered
        try:
            y = conv_transpose(
                **given, **options, groups=call.groups, before=call.before, then=shown, out=out,
                backend=backend,
            )  # fmt: skip
        except ALLOWED as error:
            if fits and not strange and not _unsupported(error):
                raise Wrong(f"a legal call raised {type(error).__name__}: {error}") from error
            if out is not None and not bool((out == 77).all()):
                raise Wrong("out was written by a call that raised") from error
            return type(error).__name__
        if not fits or strange:
            raise Wrong("a call that is not legal gave a result")
        if y.numel():
            judge(call, y, call.result(x, weight, bias, env))
    return "right"


def _typed(call: Call, make: Maker) -> tuple[list[Stage], dict[str, Tensor]]:
    """The stages with operands of the call's type, and those that the definition applies."""
    chain, operands = Chain(ConvTranspose(call.rank), *call.then).lift()
    named = list(chain.stages[1:])
    typed = {name: value.to(ELEMENTS[call.dtype].dtype) for name, value in operands.items()}
    call.then = named
    shown = []
    for stage in named:
        changes = {k: typed[v] for k, v in stage.parameters() if isinstance(v, str) and v in typed}
        shown.append(stage.with_parameters(changes))
    return shown, operands


def _unsupported(error: Exception) -> bool:
    return type(error).__name__ == "UnsupportedError"


def of_problems(make: Maker) -> str:
    """Verdicts and plans: what ``explain`` asks, about problems that no memory holds."""
    rank = make.random.choice((1, 2, 3))
    pool = make.pool(rank)
    numbers = {
        "batch": make.number(0, 4),
        "in_channels": make.number(1, 9),
        "out_channels": make.number(1, 9),
        "spatial": make.axes(rank, 1, 9),
        "kernel": make.axes(rank, 1, 5),
        "groups": make.number(1, 2),
        "device": make.random.choice(("cpu", "cuda:sm90")),
        **make.options(rank),
    }
    describe(f"Problem {numbers} {pool}")
    try:
        problem = Problem(**numbers)  # type: ignore[arg-type]
        chain = Chain(ConvTranspose(rank), pool)
        for each in BACKENDS:
            if each.verdict(chain, problem).ok:
                assert str(each.plan(chain, problem))
        return "planned"
    except ALLOWED as error:
        return type(error).__name__


def from_c(make: Maker) -> str:
    """The five problems over plain pointers."""
    random = make.random
    make.unsigned = True
    slug = random.choice(list(OPERATORS))
    operator, parameters = OPERATORS[slug], document(slug).parameters
    rank = operator.rank
    call = Call(
        rank=rank,
        batch=make.number(0, 3),
        in_channels=make.number(1, 6),
        out_channels=make.number(1, 6),
        spatial=make.axes(rank, 1, 6),
        kernel=make.axes(rank, 1, 4),
        groups=random.choice((1, 1, 2)) if operator.grouped else 1,
        dtype=random.choice(DTYPES),
        options=make.options(rank),
    )
    scalars: dict[str, Any] = {
        "pool_kernel": make.number(1, 2, 0.3),
        "num_groups": make.number(1, 3, 0.3),
        "scaling_factor": 2.0,
        "clamp_min": -1.5,
        "clamp_max": 2.5,
    }
    numbers: dict[str, Any] = {
        "batch_size": call.batch,
        "in_channels": call.in_channels,
        "out_channels": call.out_channels,
        "groups": call.groups,
        **scalars,
    }
    for name, values in (("", call.spatial), ("kernel_", call.kernel), *call.options.items()):
        names = ("depth", "height", "width") if not name else "dhw"
        prefix = name if name in ("", "kernel_") else f"{name}_"
        numbers |= {f"{prefix}{n}": v for n, v in zip(names[3 - rank :], values, strict=True)}
    taken = {p.name for p in parameters}
    for name, default in (("output_padding", 0), ("dilation", 1)):
        if f"{name}_w" not in taken:
            call.options[name] = (default,) * rank
    if slug.endswith("groupnorm"):
        call.groups = 1
    bound = operator.chain.bind({k: v for k, v in scalars.items() if k in taken})
    at = bound.at
    call.before, call.then = list(bound.stages[:at]), list(bound.stages[at + 1 :])
    shapes = call.shapes()
    small = (
        max((*call.spatial, *call.kernel, call.batch, call.in_channels, call.out_channels)) <= INT32
    )
    fits = shapes is not None and small
    describe(f"{slug} {call.dtype} {numbers}")
    large = fits and max(shape.numel for shape in shapes or ()) > COMPUTED
    large = large or (fits and prod((call.in_channels, call.out_channels, *call.kernel)) > COMPUTED)
    core = library.load()
    assert core is not None
    function = getattr(core, f"transfuse_{slug.replace('-', '_')}_{SUFFIXES[call.dtype]}")
    kinds = {"size_t": ctypes.c_size_t, "double": ctypes.c_double}
    function.argtypes = [ctypes.c_void_p if p.pointer else kinds[p.type] for p in parameters]
    tensors: dict[str, Tensor] = {}
    run = fits and not large
    inputs = [p.name for p in document(slug).inputs]
    if run:
        tensors[inputs[0]] = make.values((call.batch, call.in_channels, *call.spatial), call.dtype)
        per_group = call.out_channels // call.groups
        tensors[inputs[1]] = make.values((call.in_channels, per_group, *call.kernel), call.dtype)
        for name in inputs[2:]:
            tensors[name] = make.values((call.out_channels,), call.dtype)
        dims = (shapes or [Shape(0, 0, ())])[-1].dims
    else:
        tensors = {name: torch.ones(4, dtype=ELEMENTS[call.dtype].dtype) for name in inputs}
        dims = (4,)
    output = torch.full(dims, 77, dtype=ELEMENTS[call.dtype].dtype)
    tensors[document(slug).output.name] = output
    values = [
        (None if large else tensors[p.name].data_ptr()) if p.pointer else numbers[p.name]
        for p in parameters
    ]
    status = function(*values)
    message = core.transfuse_message().decode()
    if status not in (0, 1) or (status and not message):
        raise Wrong(f"status {status}, message {message!r}")
    if status:
        if run:
            raise Wrong(f"a legal call failed: {message}")
        if not bool((output == 77).all()):
            raise Wrong("output was written by a call that failed")
        return "refused"
    if not run and not (fits and call.batch == 0):
        raise Wrong("a call that is not legal succeeded")
    if run and output.numel():
        x, weight, *operands = (tensors[name].double() for name in inputs)
        env = dict(zip(operator.operands, operands, strict=True))
        bias = env.get(bound.conv.bias) if isinstance(bound.conv.bias, str) else None
        judge(call, output, call.result(x, weight, bias, env))
    return "right"


def of_programs(make: Maker) -> str:
    """Programs with fields that no caller should write: codes, counts, pointers, steps."""
    random = make.random
    core = library.load()
    assert core is not None
    steps = [_step(make) for _ in range(random.choice((0, 0, 1, 2, 3, 5)))]
    array = (library.Step * max(1, len(steps)))(*steps)
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
        pooled=random.choice((0, 0, 1, -1)),
        pool=_step(make),
        steps_count=len(steps) if random.random() < 0.95 else random.choice((-1, -(2**31))),
        steps=array,
        weight_scale=1,
        **three,
    )
    if random.random() < 0.03:
        program.steps = None
    describe(f"program {_fields(program)} steps {[_fields(each) for each in steps]}")
    threads = random.choice((1, 2, 3, make.number(-1, 4)))
    threads = (threads + 2**31) % 2**32 - 2**31
    pointer = ctypes.byref(program) if random.random() < 0.99 else None
    try:
        bytes_ = core.transfuse_packed_bytes(pointer)
    except RuntimeError:
        # What it refuses, the others refuse, too, before they look at any address.
        strides = library.Strides(1, 1, 1, 1, 1)
        if not core.transfuse_pack(pointer, 64, strides, 64) or not core.transfuse_run(
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
            pointer, weights.data_ptr() or 64, _strides(dims), packed.data_ptr() or 64
        ),
    )
    shape = _last(program, steps)
    before = (program.batch, program.in_channels, *program.spatial)
    if max(map(prod, (before, *shape))) > COMPUTED:
        return "left out"
    kind = torch.float64 if item == 8 else torch.float32 if item == 4 else torch.float16
    x, out = torch.zeros(prod(before), dtype=kind), torch.zeros(prod(shape[-1]), dtype=kind)
    same = program.operands == program.element
    operand = torch.ones(program.out_channels, dtype=kind if same else torch.float32)
    for step in array:
        step.t0 = step.t1 = operand.data_ptr()
    program.weights = packed.data_ptr() or 64
    program.input, program.output = x.data_ptr(), out.data_ptr()
    program.input_strides, program.output_strides = _strides(before), _strides(shape[-1])
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


def _fields(structure: ctypes.Structure) -> dict[str, Any]:
    values = {each[0]: getattr(structure, each[0]) for each in structure._fields_}
    return {k: list(v) if hasattr(v, "_length_") else v for k, v in values.items()}


def _strides(dims: tuple[int, ...]) -> Any:
    return library.Strides(*(prod(dims[i + 1 :]) for i in range(5)))


def _last(program: library.Program, steps: list[library.Step]) -> list[tuple[int, ...]]:
    """The values of a legal program: after the pool, the convolution and every step."""
    extents, channels = list(program.spatial), program.in_channels
    found: list[tuple[int, ...]] = []

    def pool(step: library.Step) -> None:
        for a in range(3):
            rest = extents[a] + 2 * step.padding[a] - step.kernel[a]
            extents[a] = rest // step.stride[a] + 1

    if program.pooled:
        pool(program.pool)
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
    described = {k: v for k, v in _fields(sweep).items() if k not in ("values", "others", "outs")}
    describe(f"sweep {described} views {[_fields(each) for each in (*values, *beside, *outs)]}")
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


KINDS = (
    from_python,
    from_python,
    from_python,
    from_c,
    from_c,
    of_programs,
    of_programs,
    of_problems,
    of_sweeps,
    of_sweeps,
)


# ---- child and parent ------------------------------------------------------------------------

_described = ""


def describe(text: str) -> None:
    """Say what the call under way is, for the case that nothing can be said afterwards."""
    global _described
    _described = text


def one(seed: int, number: int, loud: bool = False) -> str:
    random = Random(f"{seed} {number}")
    torch.set_num_threads(2 if random.random() < 0.05 else 1)
    kind = random.choice(KINDS)
    try:
        found = kind(Maker(random))
    except Exception as error:
        found = f"WRONG {type(error).__name__}: {error}\n    {_described}"
    if loud:
        print(f"{kind.__name__}: {_described}\n{found}")
    return found if found.startswith("WRONG") else f"{kind.__name__} {found}"


def child(seed: int, first: int, calls: int) -> None:
    """Run calls and write a line before and after each."""
    if "libasan" not in os.environ.get(
        "LD_PRELOAD", ""
    ):  # which keeps more addresses than there is memory
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
    for number in range(first, first + calls):
        print(f"call {number}", flush=True)
        print("done", one(seed, number).replace("\n", "\r"), flush=True)


def parent(seed: int, calls: int, seconds: float) -> int:
    """Keep a child at work until all calls are made; the number of those that went wrong."""
    counts: Counter[str] = Counter()
    faults, number = 0, 0
    repeat = f"python tests/fuzz.py --seed {seed} --only"
    while number < calls:
        command = [sys.executable, __file__, "--seed", str(seed), "--calls", str(calls - number)]
        with subprocess.Popen(
            [*command, "--child", str(number)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            ended = "it ended"
            while True:
                if not select([process.stdout], [], [], seconds)[0]:
                    process.kill()
                    ended = f"it took more than {seconds:g} s"
                    break
                line = process.stdout.readline().decode()
                if not line:
                    break
                if line.startswith("call "):
                    number = int(line.split()[1])
                elif line.startswith("done WRONG"):
                    faults += 1
                    print(
                        f"{repeat} {number}\n  {line[5:].strip()}".replace("\r", "\n"), flush=True
                    )
                    number += 1
                elif line.startswith("done "):
                    counts[line[5:].strip()] += 1
                    number += 1
        if number < calls:
            faults += 1
            print(f"{repeat} {number}\n  {ended}, status {process.returncode}", flush=True)
            number += 1
    for name, count in sorted(counts.items()):
        print(f"{count:8}  {name}")
    print(f"{calls} calls, seed {seed}: {faults} wrong")
    return faults


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--calls", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=120, help="that one call may take")
    options.add_argument("--only", type=int, help="one call, in this process")
    options.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.only is not None:
        one(given.seed, given.only, loud=True)
    elif given.child is not None:
        child(given.seed, given.child, given.calls)
    else:
        sys.exit(bool(parent(given.seed, given.calls, given.seconds)))
