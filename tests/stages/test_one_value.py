"""A tensor of a single value in a pointwise stage is one for all, as torch broadcasts it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from tests.backends.triton.conftest import Interpreter, interpreter  # noqa: F401
from transfuse import Chain, Problem
from transfuse.stages import Stage, add, conv_transpose, group_norm, max_pool, prelu, scale, softmax

X, W = (torch.randint(-3, 4, dims).float() for dims in ((2, 3, 5, 4), (3, 8, 3, 3)))
ONE = torch.tensor([-2.0])
BARE = torch.tensor(-2.0, requires_grad=True)
"""Without axes, and to be learnt: any other such tensor is a number, read when a stage is made."""
Theirs = Callable[[Tensor], Tensor]
CHAINS: dict[str, tuple[Callable[[Any], list[Stage]], Theirs]] = {
    "factor": (lambda one: [scale(one)], lambda y: -2 * y),
    "after a pool": (lambda one: [max_pool(2), scale(one)], lambda y: -2 * F.max_pool2d(y, 2)),
    "before a pool": (lambda one: [scale(one), max_pool(2)], lambda y: F.max_pool2d(-2 * y, 2)),
    "slope": (lambda one: [prelu(one), add(one)], lambda y: F.prelu(y, ONE) - 2),
}


either = pytest.mark.parametrize("one", [ONE, BARE], ids=["one axis", "no axes"])


@either
@pytest.mark.parametrize("backend", ["eager", "cpu"])
@pytest.mark.parametrize("name", CHAINS)
def test_one_for_all(name: str, backend: str, one: Tensor) -> None:
    make, theirs = CHAINS[name]
    y = transfuse.conv_transpose(X, W, then=make(one), backend=backend)
    assert y.equal(theirs(F.conv_transpose2d(X, W)))
    single = transfuse.conv_transpose(X, W[:, :1], then=make(one), backend=backend)
    assert single.equal(theirs(F.conv_transpose2d(X, W[:, :1])))


@pytest.mark.parametrize("backend", ["eager", "cpu"])
@either
def test_behind_stages_that_are_sweeps(backend: str, one: Tensor) -> None:
    y = transfuse.conv_transpose(X, W, then=[softmax(2), scale(one)], backend=backend)
    assert (y + 2 * F.conv_transpose2d(X, W).softmax(2)).abs().max() <= 1e-6


@either
def test_gradient(one: Tensor) -> None:
    one = one.detach().clone().requires_grad_()
    transfuse.conv_transpose(X, W, then=[scale(one)]).sum().backward()
    assert one.grad is not None
    assert one.grad.equal(F.conv_transpose2d(X, W).sum().view(one.shape))


@either
@pytest.mark.parametrize("name", CHAINS)
def test_in_tritons_interpreter(name: str, one: Tensor, interpreter: Interpreter) -> None:  # noqa: F811
    make, theirs = CHAINS[name]
    chain = Chain(conv_transpose(2), *make("one"))
    problem = Problem.parse("n2 ci3 co8 i5x4 k3")
    fitted = chain.fitted({"one": tuple(one.shape)})
    answer = interpreter(fitted, problem, X, W, {"one": one.detach()})
    assert "refusal" not in answer, answer["refusal"]
    assert answer["results"][0].equal(theirs(F.conv_transpose2d(X, W)))


def test_a_norm_takes_one_for_each_channel_still() -> None:
    with pytest.raises(RuntimeError, match="one value for each of 8 channels"):
        transfuse.conv_transpose(X, W, then=[group_norm(2, ONE)])


def call(one: Tensor) -> Tensor:
    return transfuse.conv_transpose(X, W, then=[scale(one), add(one)])


def torchs(one: Tensor) -> Tensor:
    return F.conv_transpose2d(X, W) * one + one


def compiled(call: Theirs) -> Tensor:
    traced = torch.compile(call, fullgraph=True, backend="aot_eager")
    return torch.stack([traced(torch.tensor(each)) for each in (-2.0, 0.5)])


TRANSFORMS: dict[str, Callable[[Theirs], Any]] = {
    "vmap": lambda call: torch.vmap(call)(torch.tensor([-2.0, 0.5])),
    "jvp": lambda call: torch.func.jvp(call, (BARE.detach(),), (torch.tensor(3.0),)),
    "jacfwd": lambda call: torch.func.jacfwd(call)(BARE.detach()),
    "jacrev": lambda call: torch.func.jacrev(call)(BARE.detach()),
    "compile": compiled,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_axes_in_transforms(name: str) -> None:
    """No number is read of it there: what it carries along would be lost."""
    torch.testing.assert_close(TRANSFORMS[name](call), TRANSFORMS[name](torchs), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_no_axes_no_type(dtype: torch.dtype) -> None:
    """As in torch it is computed with in the type of the values, and has its own gradient's."""
    one = BARE.detach().to(dtype).requires_grad_()
    y = call(one)
    assert y.dtype == X.dtype
    assert y.equal(torchs(one))
    y.sum().backward()
    assert one.grad is not None
    assert one.grad.dtype == dtype


def test_a_module_learns_it() -> None:
    layer = transfuse.nn.FusedConvTranspose(3, 8, (3, 3), then=[scale(torch.nn.Parameter(BARE))])
    layer(X).sum().backward()
    assert list(layer.state_dict()) == ["weight", "bias", "then.0.factor"]
    factor = layer.get_parameter("then.0.factor")
    assert factor.grad is not None
    torch.testing.assert_close(factor.grad, layer(X).detach().sum() / factor.detach())
    frozen = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
    held = transfuse.nn.FusedConvTranspose(3, 8, (3, 3), then=[scale(frozen)])
    assert "then.0.factor" in held.state_dict()
