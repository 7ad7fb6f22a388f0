"""Calls of the C functions."""

import ctypes
from math import prod
from typing import Any

import torch
from torch import Tensor

from tests.fuzzing.calls import (
    COMPUTED,
    INT32,
    SUFFIXES,
    Call,
    Wrong,
    judge,
)
from tests.fuzzing.drawing import Maker, describe
from transfuse.backends.cpu import library
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problem import DTYPES, Shape
from transfuse.problems import document


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
