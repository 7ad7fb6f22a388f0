"""A script: calls with tensors of one odd kind, in every position, by every way in.

It prints a line for each: entry, position, backend, and what came of it. What is served must hold
torch's own numbers. Run apart from the tests, since a tensor without memory may end the process.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.masked import masked_tensor

import transfuse
from transfuse.stages import add


class Wrapper(torch.Tensor):
    """It has no memory of its own, and computes on what it wraps."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrapped(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(unwrapped, value))
            return value.inner if isinstance(value, cls) else value

        y = func(*unwrapped(args), **{k: unwrapped(v) for k, v in (kwargs or {}).items()})
        return args[0] if func is torch.ops.aten.copy_.default else cls(y)


def distributed(tensor: Tensor) -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Replicate()])


def resized(tensor: Tensor, size: int) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(size)
    return tensor


FAKES = FakeTensorMode(allow_non_fake_inputs=True)
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "wrapper": Wrapper,
    "fake": lambda t: FAKES.from_tensor(t),
    "masked": lambda t: masked_tensor(t, t > 0),
    "distributed": distributed,
    "functional": torch._to_functional_tensor,
    "zero": lambda t: torch._efficientzerotensor(t.shape),
    "negated": torch._neg_view,
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
    "sparse": lambda t: t.to_sparse(),
    "freed": lambda t: resized(t, 0),
    "shortened": lambda t: resized(t, 4),
}


def usual(tensor: Any) -> Tensor:
    """An ordinary tensor of the same values."""
    if isinstance(tensor, Wrapper):
        return tensor.inner
    if hasattr(tensor, "to_local"):
        return tensor.to_local()
    if torch._is_functional_tensor(tensor):
        return torch._from_functional_tensor(tensor)
    return torch.zeros(tensor.shape) if tensor._is_zerotensor() else tensor.resolve_neg()


def chain(x: Tensor, w: Tensor, b: Tensor, a: Tensor, **more: Any) -> Tensor:
    return transfuse.conv_transpose(x, w, b, then=[add(a)], **more)


def operator(*tensors: Tensor, **more: Any) -> Tensor:
    softmax = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
    return softmax(*tensors, scaling_factor=2.0, **more)


def main(kind: str) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 5, 6), torch.randn(4, 6, 3, 3), torch.randn(6), torch.randn(6)]
    for call in (chain, operator):
        for at in range(6):  # an input, the output, or all inputs at once
            for backend in (None, "cpu", "eager"):
                tensors = [*given, torch.full((2, 6, 7, 8), -77.0)]
                call(*given, out=tensors[4].clone(), backend=backend)  # now it is remembered
                call(*given, backend=backend)
                print(call.__name__, at, backend, result(call, kind, tensors, at, backend), sep="|")


def result(
    call: Callable[..., Tensor], kind: str, tensors: list[Any], at: int, backend: str | None
) -> str:
    odd = KINDS[kind]
    *inputs, out = (odd(t) if i == at or (at == 5 and i < 4) else t for i, t in enumerate(tensors))
    try:
        y = call(*inputs, out=out if at == 4 else None, backend=backend)
    except (RuntimeError, TypeError) as error:
        return f"raises|{type(error).__name__}"
    if kind not in ("fake", "masked"):  # one has no values, the other leaves some open
        expected = call(*map(usual, inputs), backend="eager")
        torch.testing.assert_close(usual(y), expected, rtol=1e-4, atol=1e-5)
    return f"serves|{type(y).__name__}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
