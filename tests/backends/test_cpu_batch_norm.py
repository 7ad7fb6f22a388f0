"""batch_norm in both of its modes on the backends of a CPU, with the statistics it keeps."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.backends import BACKENDS
from transfuse.front import run
from transfuse.problem import DTYPES
from transfuse.stages import Map, batch_norm, max_pool, sigmoid, tanh

PROBLEMS = ("n3 ci3 co5 i9 k3 s2 p1", "n2 ci4 co6 i5x6 k3x2 s2x1 g2", "n2 ci3 co4 i3x4x3 k2 s2")
NAMES = ("mean", "var", "weight", "bias")
ON_CPU = ("cpu", "eager")
THEN = {"alone": (), "pooled": (max_pool(2),), "tanh and pooled": (tanh(), max_pool(2), sigmoid())}


def backend(name: str) -> Any:
    return next(each for each in BACKENDS if each.name == name)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("then", THEN.values(), ids=THEN)
@pytest.mark.parametrize("training", [False, True], ids=["running", "batch"])
@pytest.mark.parametrize("line", PROBLEMS)
@pytest.mark.parametrize("kind", [*DTYPES, "fp16 mixed", "bf16 mixed"])
def test_as_torch(
    kind: str, line: str, training: bool, then: Any, name: str, norm_call: Any
) -> None:
    dtype, _, mixed = kind.partition(" ")
    given = norm_call(f"{line} {dtype}", training, then, bool(mixed))
    ulp = backend(name).ulp(given.problem)
    oracle, expected = given.oracle(ulp), given.moved()
    before = {key: value.clone() for key, value in given.operands.items()}
    y = run(given.chain, given.problem, given.x, given.weight, given.operands, backend=name)
    accuracy = oracle.judge(y)
    assert accuracy.ok, accuracy.fault
    given.assert_moved(expected, ulp)
    changed = {key for key, value in given.operands.items() if not value.equal(before[key])}
    assert changed == ({"mean", "var"} if training else set())
    versions = [given.operands[key]._version for key in NAMES]
    assert all(version > 0 for version in versions[:2]) or not training


@pytest.mark.parametrize("name", ON_CPU)
def test_two_norms_each_keep_their_own(name: str) -> None:
    x, w = torch.randn(3, 2, 6, 5), torch.randn(2, 4, 3, 3)
    ours, theirs = ([torch.full((4,), float(i)) for i in range(4)] for _ in range(2))
    y = transfuse.conv_transpose(
        x,
        w,
        then=[
            batch_norm(*ours[:2], training=True),
            tanh(),
            max_pool(2),
            batch_norm(*ours[2:], training=True, momentum=0.5),
        ],
        backend=name,
    )
    z = F.batch_norm(F.conv_transpose2d(x, w), *theirs[:2], training=True)
    z = F.batch_norm(F.max_pool2d(z.tanh(), 2), *theirs[2:], training=True, momentum=0.5)
    torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("out", [False, True], ids=["fresh", "out="])
def test_moved_once_a_call(name: str, out: bool) -> None:
    x, w = torch.randn(2, 2, 6), torch.randn(2, 3, 3)
    mean, var = torch.zeros(3), torch.ones(3)
    theirs = mean.clone(), var.clone()
    z = F.conv_transpose1d(x, w)
    for _ in range(4):
        into = torch.empty_like(z) if out else None
        norm = batch_norm(mean, var, training=True)
        transfuse.conv_transpose(x, w, then=[norm], out=into, backend=name)
        F.batch_norm(z, *theirs, training=True)
        torch.testing.assert_close((mean, var), theirs)


@pytest.mark.parametrize("name", ON_CPU)
def test_new_values_in_the_same_tensors_are_seen(name: str) -> None:
    x, w = torch.randn(2, 2, 6), torch.randn(2, 3, 3)
    mean, var, z = torch.empty(3), torch.empty(3), F.conv_transpose1d(x, w)
    for _ in range(3):
        mean.normal_(), var.uniform_()
        y = transfuse.conv_transpose(x, w, then=[batch_norm(mean, var)], backend=name)
        torch.testing.assert_close(y, F.batch_norm(z, mean, var))
    mean.data.fill_(7)  # no version is raised
    y = transfuse.conv_transpose(x, w, then=[batch_norm(mean, var)], backend=name)
    torch.testing.assert_close(y, F.batch_norm(z, mean, var))


LAID_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "every other": lambda t: torch.stack([t, t - 9], 1).flatten()[::2],
    "a column": lambda t: torch.stack([t, t - 9], 1)[:, 0],
    "with axes of one": lambda t: t.clone().reshape(-1, 1, 1),
    "negated": lambda t: torch._neg_view(-t),
    "made without versions": lambda t: t.clone(),
}


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layout", LAID_OUT)
def test_tensors_that_lie_in_other_ways(layout: str, training: bool, name: str) -> None:
    x, w = torch.randn(2, 2, 5, 6), torch.randn(2, 3, 3, 3)
    flat = [torch.rand(3) for _ in range(4)]
    with torch.inference_mode(layout == "made without versions"):
        ours = [LAID_OUT[layout](each) for each in flat]
    neighbours = [each._base.flatten()[1::2].clone() for each in ours[:2] if each._base is not None]
    with torch.inference_mode(layout == "made without versions"):
        y = transfuse.conv_transpose(x, w, then=[batch_norm(*ours, training)], backend=name)
    expected = F.batch_norm(F.conv_transpose2d(x, w), *flat, training)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close([each.flatten() for each in ours[:2]], flat[:2])
    if layout in ("every other", "a column"):
        after = [each._base.flatten()[1::2] for each in ours[:2]]  # type: ignore[union-attr]
        assert all(a.equal(b) for a, b in zip(after, neighbours, strict=True))


@pytest.mark.parametrize("name", ON_CPU)
def test_tensors_of_inference_mode_are_written_to_as_torch_does(name: str) -> None:
    with torch.inference_mode():
        mean, var = torch.zeros(3), torch.ones(3)
        theirs = mean.clone(), var.clone()
    x, w = torch.randn(2, 2, 6), torch.randn(2, 3, 3)
    norm = batch_norm(mean, var, training=True)
    transfuse.conv_transpose(x, w, then=[norm], backend=name)
    F.batch_norm(F.conv_transpose1d(x, w), *theirs, training=True)
    torch.testing.assert_close((mean, var), theirs)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("training", [False, True])
def test_no_samples(training: bool, name: str) -> None:
    mean, var = torch.ones(3), torch.ones(3)
    norm = batch_norm(mean, var, training=training)
    y = transfuse.conv_transpose(torch.ones(0, 2, 6), torch.ones(2, 3, 3), then=[norm])
    assert y.shape == (0, 3, 8)
    assert mean.tolist() == var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ON_CPU)
def test_one_value_of_a_channel(name: str) -> None:
    x, w, mean, var = torch.randn(1, 2, 1), torch.randn(2, 3, 1), torch.rand(3), torch.rand(3)
    y = transfuse.conv_transpose(x, w, then=[batch_norm(mean, var)], backend=name)
    torch.testing.assert_close(y, F.batch_norm(F.conv_transpose1d(x, w), mean, var))
    kept = mean.clone()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        transfuse.conv_transpose(x, w, then=[batch_norm(mean, var, training=True)], backend=name)
    assert mean.equal(kept)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("where", ["x", "weight", "conv_bias", *NAMES])
def test_nan_and_inf(where: str, bad: float, training: bool, name: str, norm_call: Any) -> None:
    given = norm_call("n2 ci2 co4 i5x6 k2 s2", training, (max_pool(2),))
    tensor = {"x": given.x, "weight": given.weight}.get(where)
    (given.operands[where] if tensor is None else tensor).view(-1)[3] = bad
    ulp = backend(name).ulp(given.problem)
    oracle, expected = given.oracle(ulp), given.moved()
    y = run(given.chain, given.problem, given.x, given.weight, given.operands, backend=name)
    accuracy = oracle.judge(y)
    assert accuracy.ok, accuracy.fault
    given.assert_moved(expected, ulp)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("var", [0.0, -(2.0**-7), -1.0, 1e-30, 1e30])
def test_odd_variances(var: float, name: str, norm_call: Any) -> None:
    given = norm_call("n2 ci2 co4 i5x6 k2 s2", False, (max_pool(2),))
    given.operands["var"].fill_(var)
    oracle = given.oracle(backend(name).ulp(given.problem))
    y = run(given.chain, given.problem, given.x, given.weight, given.operands, backend=name)
    accuracy = oracle.judge(y)
    assert accuracy.ok, accuracy.fault


def test_channels_in_parts(norm_call: Any) -> None:
    """Few positions and many weights: threads share the channels, and find their own operands."""
    given = norm_call("n1 ci64 co512 i3x3 k3", False)
    y = run(given.chain, given.problem, given.x, given.weight, given.operands, backend="cpu")
    assert given.oracle(backend("cpu").ulp(given.problem)).judge(y).ok


def failing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("told to fail")

    if name == "cpu":
        monkeypatch.setattr("transfuse.backends.cpu.library.check", fail)
    else:
        monkeypatch.setattr(Map, "apply", fail)


@pytest.mark.parametrize("name", ON_CPU)
def test_a_call_that_raises_moves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mean, var = torch.zeros(3), torch.ones(3)
    then = [batch_norm(mean, var, training=True), tanh()]
    x, w = torch.randn(2, 2, 6), torch.randn(2, 3, 3)
    failing(monkeypatch, name)
    with pytest.raises(RuntimeError, match="told to fail"):
        transfuse.conv_transpose(x, w, then=then, backend=name)
    assert mean.tolist() == [0] * 3
    assert var.tolist() == [1] * 3
    assert mean._version == var._version == 0


X, W = torch.ones(2, 2, 6), torch.ones(2, 3, 3)


def refused(error: type[Exception], message: str, *arguments: Any, **options: Any) -> None:
    out = torch.full((2, 3, 8), 7.0, dtype=options.pop("dtype", torch.float32))
    x, w = options.pop("x", X.to(out.dtype)), options.pop("w", W.to(out.dtype))
    with pytest.raises(error, match=message):
        transfuse.conv_transpose(x, w, then=[batch_norm(*arguments, **options)], out=out)
    assert (out == 7).all()


def test_statistics_that_are_written_to_have_memory_of_their_own() -> None:
    both, one = torch.ones(6), torch.ones(3)
    train = {"training": True}
    refused(RuntimeError, "running_mean is written to and shares memory", one, one, **train)
    refused(RuntimeError, "shares memory", both[:3], both[2:5], **train)
    refused(RuntimeError, "shares memory", one, both[3:], one, **train)
    refused(RuntimeError, "shares memory .* input", X.view(-1)[:3], one, x=X, **train)
    refused(RuntimeError, "two elements in one place", torch.ones(1).expand(3), one, **train)
    assert one.tolist() == [1, 1, 1]
    stage = batch_norm(one, both[:3], training=True)
    with pytest.raises(RuntimeError, match="shares memory"):
        transfuse.conv_transpose(X, W, then=[stage, tanh(), batch_norm(one, both[3:])])
    # Read only, they may: torch reads them as well.
    y = transfuse.conv_transpose(X, W, then=[batch_norm(one, one, one, one)])
    torch.testing.assert_close(y, F.batch_norm(F.conv_transpose1d(X, W), one, one, one, one))


def test_a_name_that_one_stage_writes_to_and_another_uses(norm_call: Any) -> None:
    given = norm_call("n2 ci2 co4 i5 k2", True, (tanh(), batch_norm("mean", "other")))
    with pytest.raises(RuntimeError, match="mean is written to by one stage and used by another"):
        run(given.chain, given.problem, given.x, given.weight, given.operands)


def test_sizes_and_types() -> None:
    three, four = torch.ones(3), torch.ones(4)
    refused(RuntimeError, "running_mean .* 3 channels.* got .4", four, three)
    refused(RuntimeError, "running_var .* 3 channels.* got .4", three, four, training=True)
    refused(RuntimeError, "must have the same type", three.double(), three)
    refused(RuntimeError, "must have the same type", three, three.half())
    refused(RuntimeError, "same type", three, three.double(), dtype=torch.float16)
    refused(RuntimeError, "same type", three.half(), three, dtype=torch.bfloat16)
    refused(ValueError, "expected 3D input", three, three, x=X[0])


def test_gradients_go_as_torchs() -> None:
    """In float64: in float32 torch's own are off by more than the default of assert_close."""
    z = [torch.randn(dims).double() for dims in ((2, 2, 6), (2, 3, 3), (3,), (3,))]
    for training in (False, True):
        ours, theirs = ([each.clone().requires_grad_() for each in z] for _ in range(2))
        draw = torch.Generator().manual_seed(0)
        mine = [torch.rand(3, generator=draw).double() for _ in "mv"]
        yours = [each.clone() for each in mine]
        y = transfuse.conv_transpose(*ours[:2], then=[batch_norm(*mine, *ours[2:], training)])
        x = F.conv_transpose1d(*theirs[:2])
        expected = F.batch_norm(x, *yours, *theirs[2:], training)
        for each in (y, expected):
            each.square().sum().backward()
        torch.testing.assert_close([t.grad for t in ours], [t.grad for t in theirs])
        torch.testing.assert_close(mine, yours)


def test_statistics_have_no_gradient() -> None:
    mean, var = torch.zeros(3, requires_grad=True), torch.ones(3)
    for training in (False, True):
        with pytest.raises(RuntimeError, match="grad"):
            transfuse.conv_transpose(X, W, then=[batch_norm(mean, var, training=training)])
    with torch.no_grad():
        transfuse.conv_transpose(X, W, then=[batch_norm(mean, var, training=True)])
    assert var.tolist() != [1, 1, 1]


def test_a_change_is_seen_by_autograd() -> None:
    """What was saved for the way back is not what the buffer holds any more."""
    mean, var = torch.zeros(3), torch.ones(3)
    factor = torch.ones(3, requires_grad=True)
    product = factor * var
    transfuse.conv_transpose(X, W, then=[batch_norm(mean, var, training=True)], backend="cpu")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_momentum_as_torchs() -> None:
    for momentum in (0, 1, 0.9, 1.5, True):
        ours, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
        norm = batch_norm(*ours, training=True, momentum=momentum)
        transfuse.conv_transpose(X, W, then=[norm])
        z = F.conv_transpose1d(X, W)
        F.batch_norm(z, *theirs, training=True, momentum=momentum)
        torch.testing.assert_close(ours, theirs)
