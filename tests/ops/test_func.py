"""Transforms of torch.func, forward mode and second order: of the call and of the operation."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad, functional

import transfuse
from transfuse.stages import pointwise, scale, sigmoid

torch.manual_seed(0)
X = torch.randn(2, 4, 5, 6, dtype=torch.float64)
W, B = torch.randn(4, 6, 3, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
LINE = "conv_transpose2d(+ bias) -> sigmoid -> scale(numbers[0])"
OPTIONS = ([2.5], LINE, [2, 2], [0, 0], [0, 0], [1, 1], 1, "ieee", "")


def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose(x, w, b, stride=2, then=[sigmoid(), scale(2.5)])


def operation(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y: Tensor = torch.ops.transfuse.chain(x, w, [b], *OPTIONS)
    return y


def torchs(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w, b, stride=2).sigmoid() * 2.5


Call = Callable[[Tensor, Tensor, Tensor], Tensor]
both = pytest.mark.parametrize("f", [call, operation])


@both
@pytest.mark.parametrize("mapped", [{0}, {1}, {2}, {0, 1, 2}], ids=str)
def test_vmap(f: Call, mapped: set[int]) -> None:
    tensors = [torch.stack([t, 2 * t]) if i in mapped else t for i, t in enumerate((X, W, B))]
    axes = tuple(0 if i in mapped else None for i in range(3))
    found = torch.vmap(f, in_dims=axes)(*tensors)
    torch.testing.assert_close(found, torch.vmap(torchs, in_dims=axes)(*tensors))


@both
def test_vmap_within_vmap(f: Call) -> None:
    xs, ws = torch.stack([X, 2 * X]), torch.stack([W, -W])

    def every(g: Call) -> Tensor:
        inner = torch.vmap(g, in_dims=(None, 0, None))
        return torch.vmap(inner, in_dims=(0, None, None))(xs, ws, B)

    torch.testing.assert_close(every(f), every(torchs))


@both
def test_grad_jacobians_and_jvp(f: Call) -> None:
    def loss(g: Call) -> Callable[..., Tensor]:
        return lambda *tensors: g(*tensors).square().sum()

    every = (0, 1, 2)
    found = torch.func.grad(loss(f), argnums=every)(X, W, B)
    torch.testing.assert_close(found, torch.func.grad(loss(torchs), argnums=every)(X, W, B))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(
            jacobian(f, argnums=2)(X, W, B), jacobian(torchs, argnums=2)(X, W, B)
        )
    ways = (X.cos(), W.cos(), B.cos())
    torch.testing.assert_close(
        torch.func.jvp(f, (X, W, B), ways), torch.func.jvp(torchs, (X, W, B), ways)
    )
    hessians = (torch.func.hessian(loss(g), argnums=2)(X, W, B) for g in (f, torchs))
    torch.testing.assert_close(*hessians)


@both
def test_gradients_of_each_sample(f: Call) -> None:
    def loss(g: Call) -> Callable[..., Tensor]:
        return lambda w, x: g(x[None], w, B).square().sum()

    samples = (torch.vmap(torch.func.grad(loss(g)), (None, 0))(W, X) for g in (f, torchs))
    torch.testing.assert_close(*samples)


@both
def test_forward_mode(f: Call) -> None:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, t.cos()) for t in (X, W, B)]
        found, expected = (forward_ad.unpack_dual(g(*duals)) for g in (f, torchs))
    assert found.tangent is not None
    torch.testing.assert_close(found.tangent, expected.tangent)


@both
def test_functional_call(f: Call) -> None:
    class Up(torch.nn.Module):
        def __init__(self, g: Call) -> None:
            super().__init__()
            self.g, self.w = g, torch.nn.Parameter(torch.zeros_like(W))

        def forward(self, x: Tensor) -> Tensor:
            return self.g(x, self.w, B)

    found = torch.func.functional_call(Up(f), {"w": W}, (X,))
    torch.testing.assert_close(found, torchs(X, W, B))


@both
def test_first_and_second_order(f: Call) -> None:
    tensors = [t[:1, ..., :2].clone() if t is X else t.clone() for t in (X, W, B)]
    tensors = [each.requires_grad_() for each in tensors]
    assert torch.autograd.gradcheck(f, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, tensors, fast_mode=True)


@both
def test_batches_of_gradients(f: Call) -> None:
    """By torch's older vmap, which ``torch.autograd`` still has for them."""
    x, found = X[:1, :, :1, :1], []
    for g in (f, torchs):
        b = B.clone().requires_grad_()
        y = g(x, W, b)
        ways = torch.stack([y.detach().cos(), y.detach().sin()])
        found.append(torch.autograd.grad(y, b, ways, is_grads_batched=True))
        found[-1] += (functional.jacobian(partial(g, x, W), B, vectorize=True),)
    torch.testing.assert_close(*found)


@both
def test_third_order(f: Call) -> None:
    found = []
    for g in (f, torchs):
        b = B.clone().requires_grad_()
        y = g(X, W, b).square().sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y, b, create_graph=True)
            y = y.square().sum()
        found.append(y.detach())
    torch.testing.assert_close(*found)


USES = {
    "all": pointwise(lambda x, a: x * a),
    "not the argument": pointwise(lambda x, a: 2 * x),
    "not the values": pointwise(lambda x, a: a * a),
}


@pytest.mark.parametrize("samples", [2, 0])
@pytest.mark.parametrize("name", USES)
def test_what_a_result_does_not_depend_on_has_zeros(name: str, samples: int) -> None:
    """In either order; neither is an error."""
    x, w, a = (t.clone().requires_grad_() for t in (X[:samples], W, B))
    y = transfuse.conv_transpose(x, w, then=[USES[name](a)])
    first = torch.autograd.grad(y.square().sum(), (x, w, a), create_graph=True)
    depends = [name != "not the values"] * 2 + [name != "not the argument"]
    assert [bool(each.any()) for each in first] == [each and bool(samples) for each in depends]
    second = torch.autograd.grad(
        torch.stack([each.square().sum() for each in first]).sum(), (x, w, a), allow_unused=True
    )
    assert [each is not None and bool(each.any()) for each in second] == [
        each and bool(samples) for each in depends
    ]


def test_what_is_kept_are_the_inputs() -> None:
    """Nothing as large as the convolution's output, nor anything else."""
    x, w, b = (t.clone().requires_grad_() for t in (X, W, B))
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = call(x, w, b)
    assert [each.data_ptr() for each in kept] == [each.data_ptr() for each in (x, w, b)]
    y.sum().backward()


def test_one_tensor_in_two_places() -> None:
    found = []
    for g in (call, torchs):
        a = torch.randn(4, 4, 3, 3, generator=torch.manual_seed(1), dtype=torch.float64)
        a.requires_grad_()
        g(a, a, B[:4]).square().sum().backward()
        found.append(a.grad)
    torch.testing.assert_close(*found)
