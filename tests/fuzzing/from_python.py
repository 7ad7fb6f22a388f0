"""Calls of ``conv_transpose``."""

from typing import Any

import torch
from torch import Tensor

from tests.fuzzing.calls import ALLOCATED, ALLOWED, COMPUTED, Call, Wrong, judge
from tests.fuzzing.drawing import Maker, describe
from transfuse import conv_transpose
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.stages import (
    ConvTranspose,
    Stage,
)


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
