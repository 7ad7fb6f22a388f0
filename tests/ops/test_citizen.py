"""What else torch asks of an operation: names, counts, modes, checkpoints, fakes, errors."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import transfuse
from transfuse.stages import (
    avg_pool,
    batch_norm,
    group_norm,
    leaky_relu,
    max_pool,
    scale,
    sigmoid,
)

X, W, B = torch.randn(2, 4, 7, 9), torch.randn(4, 6, 3, 3), torch.randn(6)
OPS = torch.ops.transfuse


def call(x: Tensor, w: Tensor, b: Tensor, **more: Any) -> Tensor:
    then = [sigmoid(), scale(2.5), max_pool(2), group_norm(2, b, b)]
    return transfuse.conv_transpose(x, w, b, stride=2, then=then, **more)


def learning() -> list[Tensor]:
    return [each.clone().requires_grad_() for each in (X, W, B)]


# ---- names and counts ------------------------------------------------------------------------


def names(**options: Any) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU], **options) as seen:
        call(*learning()).sum().backward()
        with torch.no_grad():
            call(X, W, B)
    return {event.key for event in seen.key_averages()}


def test_the_profiler_sees_names() -> None:
    found = names()
    assert {"transfuse::chain", "transfuse::chain_backward"} <= found
    with torch.inference_mode():
        for _ in range(3):
            right = transfuse.conv_transpose2d(X, W, B)  # now it is remembered
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            y = transfuse.conv_transpose2d(X, W, B)
    assert y.equal(right)
    assert [e.count for e in seen.key_averages() if e.key == "transfuse::chain"] == [1]


def test_the_counter_of_flops() -> None:
    with FlopCounterMode(display=False) as ours:
        call(X, W, B)
    with FlopCounterMode(display=False) as theirs:
        F.conv_transpose2d(X, W, B, stride=2)
    assert ours.get_total_flops() == theirs.get_total_flops() > 0
    with FlopCounterMode(display=False) as behind:
        transfuse.conv_transpose(X, W, before=[avg_pool(2)])
    with FlopCounterMode(display=False) as pooled:
        F.conv_transpose2d(F.avg_pool2d(X, 2), W)
    assert behind.get_total_flops() == pooled.get_total_flops() > 0
    with FlopCounterMode(display=False) as training:
        call(*learning()).sum().backward()
    assert training.get_total_flops() == 4 * theirs.get_total_flops(), "forward, again, and two"


# ---- training --------------------------------------------------------------------------------


def test_the_fused_backend_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients as without them, by the backend that explain names.

    The same bits, but where the call keeps values for gradients: a norm's sums then have another
    order.
    """
    tensors = learning()
    torch.testing.assert_close(call(*tensors).detach(), call(X, W, B))
    alone = transfuse.conv_transpose(*tensors, stride=2, then=[leaky_relu(0.2)])
    with torch.no_grad():
        assert alone.equal(transfuse.conv_transpose(X, W, B, stride=2, then=[leaky_relu(0.2)]))
    assert transfuse.explain(transfuse.conv_transpose2d, *tensors).chosen == "cpu"
    y = call(*tensors, backend="eager")
    assert "Chain" not in type(y.grad_fn).__name__, "torch's own operations, and their gradients"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    ours, theirs = learning(), learning()
    checkpoint(call, *ours, use_reentrant=reentrant).square().sum().backward()
    call(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        if reentrant:  # its result is that of a call without gradients
            torch.testing.assert_close(a.grad, b.grad)
        else:
            assert a.grad.equal(b.grad)


def test_deterministic_algorithms() -> None:
    def step() -> list[Tensor]:
        tensors = learning()
        y = call(*tensors)
        y.square().sum().backward()
        return [y.detach(), *(each.grad for each in tensors)]  # type: ignore[list-item]

    first = step()
    torch.use_deterministic_algorithms(True)
    try:
        again = step()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_running_statistics_in_training() -> None:
    """They move once, as without gradients, and what the backward reads is not what moved."""
    # In float64: behind a norm of its own batch most of a gradient cancels.
    ours, theirs = ([torch.zeros(6).double(), torch.ones(6).double()] for _ in range(2))

    def step(mean: Tensor, var: Tensor, tensors: list[Tensor], **more: Any) -> Tensor:
        norm = batch_norm(mean, var, tensors[2], tensors[2], training=True)
        return transfuse.conv_transpose(tensors[0], tensors[1], stride=2, then=[norm], **more)

    a, b = ([each.double().requires_grad_() for each in (X, W, B)] for _ in range(2))
    for _ in range(2):
        step(*ours, a).square().sum().backward()
        step(*theirs, b, backend="eager").square().sum().backward()
    torch.testing.assert_close(ours, theirs)
    assert ours[0].count_nonzero() == 6
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-9)
    version = ours[0]._version
    step(*ours, a)
    assert ours[0]._version == version + 1


def test_statistics_that_another_call_moves_before_gradients_are_asked_for() -> None:
    """A model that evaluates and then trains in one step: gradients are those of what was read."""
    mean, var = torch.zeros(6).double(), torch.ones(6).double()
    x, w, b = (each.double().requires_grad_() for each in (X, W, B))

    def run(training: bool) -> Tensor:
        norm = batch_norm(mean, var, b, b, training=training)
        return transfuse.conv_transpose(x, w, stride=2, then=[norm, sigmoid()]).square().sum()

    wanted = torch.autograd.grad(run(False), (x, w, b))
    evaluated = run(False)
    run(True)
    assert mean.count_nonzero() == 6
    found = torch.autograd.grad(evaluated, (x, w, b))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_autocast_around_all_of_a_step() -> None:
    """The backward casts nothing of its own, whether autocast is still on there or not."""
    found = []
    for around in (False, True):
        tensors = learning()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(*tensors)
            if around:
                y.float().square().sum().backward()
        if not around:
            y.float().square().sum().backward()
        found.append([each.grad for each in tensors])
    for a, b in zip(*found, strict=True):
        assert a is not None
        assert a.dtype == torch.float32
        assert a.equal(b)
    for backend in ("cpu", "eager"):
        given = (X, W, [B], *USUAL[:-1], backend)
        expected = OPS.chain(*given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert OPS.chain(*given).equal(expected), "the call casts, not the operation"


def test_out_and_solutions_stay_outside() -> None:
    tensors = learning()
    with pytest.raises(RuntimeError, match="out= does not support automatic differentiation"):
        call(*tensors, out=torch.empty(2, 6, 7, 9))
    solve = transfuse.solution("conv-transpose-2d-square-input-asym-kernel")
    out = torch.empty(2, 6, 9, 11)
    solve(tensors[0], tensors[1], out, 2, 4, 6, 7, 9, 3, 3, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    assert out.equal(transfuse.conv_transpose2d(X, W))
    assert not out.requires_grad, "it records nothing"


# ---- fakes -----------------------------------------------------------------------------------

INPUTS = {
    "contiguous": X,
    "channels_last": X.to(memory_format=torch.channels_last),
    "strided": X.transpose(2, 3),
    "every second": torch.randn(2, 4, 7, 18)[..., ::2],
    "unbatched": X[0],
    "unbatched strided": X.to(memory_format=torch.channels_last)[0],
    "no samples": X[:0],
    "one channel": torch.randn(2, 1, 7, 9),
    "half": X.bfloat16(),
    "double": X.double(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_fakes_are_like_the_real(name: str) -> None:
    x = INPUTS[name]
    channels = x.shape[-3]
    w, b = W[:channels].to(x.dtype), B.to(x.dtype)
    functions = [
        lambda x, w, b: transfuse.conv_transpose2d(x, w, b, stride=2),
        lambda x, w, b: transfuse.conv_transpose(x, w, b, then=[transfuse.stages.flatten()]),
        lambda x, w, b: transfuse.conv_transpose(x, w, then=[transfuse.stages.sum("space")]),
    ]
    for function in functions[:1] if x.dim() == 3 else functions:
        real = function(x, w, b)
        with FakeTensorMode() as mode:
            fake = function(*map(mode.from_tensor, (x, w, b)))
        for fact in ("shape", "dtype", "device"):
            assert getattr(fake, fact) == getattr(real, fact)
        assert fake.stride() == real.stride()


LINE = "conv_transpose2d(+ bias) -> sigmoid -> scale(numbers[0])"
USUAL: tuple[Any, ...] = ([2.5], LINE, [2, 2], [0, 0], [0, 0], [1, 1], 1, "ieee", "")


def changed(at: int, value: Any) -> tuple[Any, ...]:
    return (*USUAL[:at], value, *USUAL[at + 1 :])


WRONG: dict[str, tuple[type[Exception], str, Any]] = {
    "channels": (RuntimeError, "expects an input of 4 channels", (X[:, :3], W, [B], *USUAL)),
    "type": (RuntimeError, "must have the same type", (X, W.double(), [B], *USUAL)),
    "operands": (RuntimeError, r"takes 1 operands \(bias\), but got 0", (X, W, [], *USUAL)),
    "operand": (RuntimeError, "to hold one value for each of 6", (X, W, [B[:5]], *USUAL)),
    "unbatched": (RuntimeError, r"expected 4D \(batched\) input", (X[0], W, [B], *USUAL)),
    "stride": (RuntimeError, "stride must be at least 1", (X, W, [B], *changed(2, [0, 2]))),
    "padding": (RuntimeError, "empty output", (X, W, [B], *changed(3, [99, 0]))),
    "groups": (RuntimeError, "groups=3 does not divide", (X, W, [B], *changed(6, 3))),
    "backend": (ValueError, "unknown backend 'swift'", (X, W, [B], *changed(8, "swift"))),
    "precision": (ValueError, "precision tf32 is for", (X, W, [B], *changed(7, "tf32"))),
    "line": (ValueError, "unknown stage", (X, W, [B], *changed(1, "conv_transpose2d -> lrn"))),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_same_errors(name: str) -> None:
    error, says, given = WRONG[name]
    with pytest.raises(error, match=says):
        OPS.chain(*given)
    with FakeTensorMode() as mode:
        x, w, operands, *rest = given
        fakes = [mode.from_tensor(each) for each in (x, w, *operands)]
        with pytest.raises(error, match=says):
            OPS.chain(fakes[0], fakes[1], fakes[2:], *rest)
