"""Under autocast a chain is one operation: cast as torch casts for its own convolutions."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.stages import add, group_norm, sigmoid

X, W, B = torch.randn(2, 4, 5, 6), torch.randn(4, 6, 3, 3), torch.randn(6)
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


def chain(x: Tensor, w: Tensor, b: Tensor, **more: Any) -> Tensor:
    # A norm's operands are not cast, as in torch.
    then = [sigmoid(), group_norm(2, B, B), add(b)]
    return transfuse.conv_transpose(x, w, b, then=then, **more)


def operator(x: Tensor, w: Tensor, b: Tensor, **more: Any) -> Tensor:
    softmax = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
    return softmax(x, w, b, b, scaling_factor=2.0, **more)


CALLS: list[Callable[..., Tensor]] = [transfuse.conv_transpose2d, chain, operator]


@pytest.fixture(params=["cpu", "eager"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("wanted", HALVES)
def test_types_are_torchs(wanted: torch.dtype, backend: str) -> None:
    """Every mixture of types; float64 is not cast, and may not be mixed with what is."""
    for types in product(TYPES, repeat=3):
        given = [t.to(dtype) for t, dtype in zip((X, W, B), types, strict=True)]
        with torch.autocast("cpu", dtype=wanted):
            if torch.float64 in types and len({*types}) > 1:
                with pytest.raises(RuntimeError, match="must have the same type"):
                    transfuse.conv_transpose2d(*given, backend=backend)
                continue
            y = transfuse.conv_transpose2d(*given, backend=backend)
            expected = F.conv_transpose2d(*given)
        assert y.dtype == expected.dtype, types
        torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wanted", HALVES)
def test_one_operation(call: Any, wanted: torch.dtype, backend: str) -> None:
    """The same bits as on tensors that were cast before, remembered or not."""
    expected = call(*(t.to(wanted) for t in (X, W, B)), backend=backend)
    plain = call(X, W, B, backend=backend)
    for _ in range(2):
        with torch.autocast("cpu", dtype=wanted):
            y = call(X, W, B, backend=backend)
            assert y.dtype == wanted
            assert y.equal(expected)
            assert call(y[:, :4], W, B, backend=backend).dtype == wanted
        assert call(X, W, B, backend=backend).equal(plain)


def test_without_autocast_types_must_agree(backend: str) -> None:
    for dtype in HALVES:
        with pytest.raises(RuntimeError, match="must have the same type"):
            transfuse.conv_transpose2d(X.to(dtype), W, B, backend=backend)
        with (
            torch.autocast("cpu", dtype=dtype),
            torch.autocast("cpu", enabled=False),
            pytest.raises(RuntimeError, match="must have the same type"),
        ):
            transfuse.conv_transpose2d(X.to(dtype), W, B, backend=backend)


def test_autocast_of_another_device(backend: str) -> None:
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        assert transfuse.conv_transpose2d(X, W, B, backend=backend).dtype == torch.float32
    finally:
        torch.set_autocast_enabled("cuda", before)
    with torch.autocast("cpu"):
        y = transfuse.conv_transpose2d(*(t.to("meta") for t in (X, W, B)))
    assert (y.dtype, y.device.type) == (torch.float32, "meta")


@pytest.mark.parametrize("call", CALLS)
def test_gradients_come_back_in_the_types_given(call: Any) -> None:
    tensors = [t.clone().requires_grad_() for t in (X, W, B)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = call(*tensors)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in tensors)


def test_an_output_that_is_given_sets_the_type(backend: str) -> None:
    """As in torch: calls that supply an output are let be."""
    expected = chain(X, W, B, backend=backend)
    out = torch.empty(expected.shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chain(X, W, B, out=out, backend=backend)
        assert torch.add(X, 1, out=torch.empty_like(X)).dtype == torch.float32
    assert out.equal(expected)


def test_a_solution_is_not_cast(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", backend)
    solve = transfuse.solution("conv-transpose-2d-square-input-asym-kernel")
    out = torch.empty(2, 6, 7, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        solve(X, W, out, 2, 4, 6, 5, 6, 3, 3, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    assert out.equal(transfuse.conv_transpose2d(X, W, backend=backend))
