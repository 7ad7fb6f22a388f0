"""What of PyTorch works on which backend, as a page in Markdown: every cell is a run.

``python -m transfuse.report.pytorch FILE`` writes it.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import run

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import transfuse
from transfuse.errors import UnsupportedError
from transfuse.stages import Stage, batch_norm, scale, sigmoid

COLUMNS = ("cpu", "triton", "eager")
FUSED, TORCH = "fused", "torch"

Call = Callable[..., Tensor]
"""A chain of x, weight and bias, on one backend or on whichever serves."""

HEAD = """# PyTorch features

<!-- Written by `python -m transfuse.report.pytorch docs/pytorch.md`; tests run every cell. -->

To torch a call is one operation, `transfuse::chain`, and its gradients are another,
`transfuse::chain_backward`. The chain stands in them as its printed line, so graphs, exported
programs and profiles can be read:

```text
torch.ops.transfuse.chain(x, weight, [bias], [2.5],
    'conv_transpose2d(+ bias) -> sigmoid -> scale(numbers[0])',
    [2, 2], [0, 0], [0, 0], [1, 1], 1, 'ieee', '')
```

Without gradients, and with nothing of torch's around it, a call goes straight to its backend.

In `torch.compile` a float that changes from call to call, such as `t` in `then=[scale(t)]`, is a
tensor of the graph, which serves all its values. Beside float16 and bfloat16 there is a graph for
each: a tensor of their type would round the number.

Each cell is what came of a small chain on that backend, compared with torch:

- **fused**: the backend ran the call.
- **torch**: it ran as torch operations, and asked for by name the backend says why it does not.

Transforms (`torch.func`, `vmap`), forward-mode differentiation and `torch.jit.trace` go through
torch operations, each of which has a rule for them; so does ONNX export. Of gradients of second and
higher order the backend runs the call itself, torch operations the rest. `triton` is Triton's
interpreter here. `out=` and `solution` stay outside autograd: the first raises where a tensor
requires grad, the second records nothing.
"""


def _tensors() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 5, 6), (4, 6, 3, 3), (6,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return x, weight, bias


def ours(backend: str | None) -> Call:
    """The chain, or one of other stages, on a backend."""

    def call(
        x: Tensor, weight: Tensor, bias: Tensor | None, then: Sequence[Stage] | None = None
    ) -> Tensor:
        then = [sigmoid(), scale(2.5)] if then is None else then
        return transfuse.conv_transpose(x, weight, bias, stride=2, then=then, backend=backend)

    return call


def torchs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in torch."""
    return F.conv_transpose2d(x, weight, bias, stride=2).sigmoid() * 2.5


def _same(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _gradients(call: Call, around: Callable[..., Tensor] = lambda f, *t: f(*t)) -> list[Tensor]:
    tensors = [each.requires_grad_() for each in _tensors()]
    around(call, *tensors).square().sum().backward()  # type: ignore[no-untyped-call]
    return [each.grad for each in tensors if each.grad is not None]


def _plain(call: Call) -> None:
    with torch.inference_mode():
        _same(call(*_tensors()), torchs(*_tensors()))


def _channels_last(call: Call) -> None:
    x, weight, bias = _tensors()
    y = call(x.contiguous(memory_format=torch.channels_last), weight, bias)
    _same(y, torchs(x, weight, bias))


def _autocast(call: Call) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = call(*_tensors())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), torchs(*_tensors()), rtol=0.05, atol=0.05)


def _first_order(call: Call) -> None:
    _same(_gradients(call), _gradients(torchs))


def _second_order(call: Call) -> None:
    found: list[Tensor] = []
    for each in (call, torchs):
        x, weight, bias = _tensors()
        bias.requires_grad_()
        loss = each(x, weight, bias).square().sum()
        (first,) = torch.autograd.grad(loss, bias, create_graph=True)
        found += torch.autograd.grad(first.square().sum(), bias)
    _same(*found)


def _statistics(call: Call) -> None:
    mean, var = torch.zeros(6), torch.ones(6)
    x, weight, _ = _tensors()
    y = call(x, weight.requires_grad_(), None, then=[batch_norm(mean, var, training=True)])
    assert y.requires_grad
    kept = torch.zeros(6), torch.ones(6)
    F.batch_norm(F.conv_transpose2d(x, weight.detach(), stride=2), *kept, training=True)
    _same((mean, var), kept)


def _checkpoint(call: Call) -> None:
    def around(f: Call, *tensors: Tensor) -> Tensor:
        y: Tensor = checkpoint(f, *tensors, use_reentrant=False)
        return y

    _same(_gradients(call, around), _gradients(torchs))


def _deterministic(call: Call) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        first, again = _gradients(call), _gradients(call)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def _compile(call: Call) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    _same(_gradients(compiled), _gradients(torchs))


def _export(call: Call) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return call(x, weight, bias)

    program = torch.export.export(Module(), _tensors())
    _same(program.module()(*_tensors()), torchs(*_tensors()))


def _fake(call: Call) -> None:
    with FakeTensorMode() as mode:
        y = call(*map(mode.from_tensor, _tensors()))
    assert y.shape == torchs(*_tensors()).shape


def _profiler(call: Call) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call(*_tensors())
    assert "transfuse::chain" in {event.key for event in seen.key_averages()}


def _vmap(call: Call) -> None:
    x, weight, bias = _tensors()
    stacked = torch.stack([weight, -weight])
    found = (torch.vmap(each, (None, 0, None))(x, stacked, bias) for each in (call, torchs))
    _same(*found)


def _func(call: Call) -> None:
    found = (
        torch.func.grad(lambda *t, f=each: f(*t).square().sum(), (0, 1, 2))(*_tensors())
        for each in (call, torchs)
    )
    _same(*found)


def _forward_mode(call: Call) -> None:
    ways = tuple(each.cos() for each in _tensors())
    found = [torch.func.jvp(each, _tensors(), ways)[1] for each in (call, torchs)]
    _same(*found)


def _jit(call: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        traced = torch.jit.trace(call, _tensors())  # type: ignore[no-untyped-call]
    _same(traced(*_tensors()), torchs(*_tensors()))


FEATURES: dict[str, Callable[[Call], None]] = {
    "`torch.inference_mode`, `no_grad`": _plain,
    "`channels_last`": _channels_last,
    "autocast": _autocast,
    "gradients": _first_order,
    "gradients of second order": _second_order,
    "running statistics in training": _statistics,
    "activation checkpointing": _checkpoint,
    "`use_deterministic_algorithms`": _deterministic,
    "`torch.compile(fullgraph=True, dynamic=True)`, training": _compile,
    "`torch.export`": _export,
    "fake tensors": _fake,
    "names in the profiler": _profiler,
    "`torch.vmap`": _vmap,
    "`torch.func.grad`": _func,
    "forward-mode differentiation": _forward_mode,
    "`torch.jit.trace`": _jit,
}


def cell(feature: str, backend: str) -> str:
    """What comes of a feature on a backend; raises where it does not work at all."""
    check = FEATURES[feature]
    try:
        check(ours(backend))
    except UnsupportedError:
        check(ours(None))
        return TORCH
    return TORCH if backend == "eager" else FUSED


def column(backend: str) -> list[str]:
    """The cells of a backend. Triton's interpreter must be chosen before Triton is loaded."""
    if backend != "triton":
        return [cell(feature, backend) for feature in FEATURES]
    command = ["env", "TRITON_INTERPRET=1", sys.executable, "-m", "transfuse.report.pytorch"]
    return run(command, capture_output=True, text=True, check=True).stdout.split()


def page() -> str:
    """The page, every cell of it run now."""
    columns = [column(backend) for backend in COLUMNS]
    return "\n".join([HEAD, *_rows(columns)]) + "\n"


def _rows(columns: list[list[str]]) -> Iterator[str]:
    yield f"| feature | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for name, *cells in zip(FEATURES, *columns, strict=True):
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        print(*(cell(feature, "triton") for feature in FEATURES), sep="\n")
