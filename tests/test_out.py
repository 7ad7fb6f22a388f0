"""Outputs that are given: autograd sees that they were written, torch's refusals are kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse

X, W = torch.randn(1, 2, 3, 4), torch.randn(2, 3, 2, 2)
SIZES = (1, 2, 3, 3, 4, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 1)


def solve(out: Tensor, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", backend)
    transfuse.solution("conv-transpose-2d-square-input-asym-kernel")(X, W, out, *SIZES)


def function(out: Tensor, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transfuse.conv_transpose2d(X, W, out=out, backend=backend)


def unbatched(out: Tensor, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transfuse.conv_transpose2d(X[0], W, out=out[0], backend=backend)


def operator(out: Tensor, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transfuse.conv_transpose_2d_square_input_asym_kernel(X, W, out=out, backend=backend)


@pytest.fixture(params=[solve, function, unbatched, operator], ids=lambda f: f.__name__)
def fill(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def filled(out: Tensor, backend: str) -> None:
        request.param(out, backend, monkeypatch)

    return filled


@pytest.fixture(params=["cpu", "eager"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def empty() -> Tensor:
    return torch.full((1, 3, 4, 5), -77.0)


def test_autograd_sees_that_an_output_was_overwritten(fill: Any, backend: str) -> None:
    """What was saved to differentiate a product is not what is there now."""
    factor, out = torch.ones((), requires_grad=True), empty()
    fill(out, backend)
    before = out._version
    product = (factor * out).sum()
    fill(out, backend)
    assert out._version > before
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        product.backward()


def test_inference_tensors_are_written_in_inference_mode_alone(fill: Any, backend: str) -> None:
    with torch.inference_mode():
        out = empty()
    with pytest.raises(RuntimeError) as theirs:
        out.copy_(empty())
    with pytest.raises(RuntimeError) as ours:
        fill(out, backend)
    assert str(ours.value).split(".")[0] == str(theirs.value).split(".")[0]
    assert (out == -77.0).all()
    with torch.inference_mode():
        fill(out, backend)
        ordinary = torch.nn.functional.conv_transpose2d(X, W)
        torch.testing.assert_close(out, ordinary)


def test_in_inference_mode_any_output_is_written(fill: Any, backend: str) -> None:
    out = empty()
    fill(out, backend)
    again, before = empty(), out._version
    with torch.inference_mode():
        fill(again, backend)
        fill(out, backend)
    assert again.equal(out)
    assert out._version > before
