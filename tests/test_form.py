"""Results whose axes are left out or joined: every backend gives them, into any memory."""

from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse.errors import UnsupportedError
from transfuse.stages import (
    Stage,
    amax,
    cat,
    flatten,
    group_norm,
    max_pool,
    mean,
    relu,
    scale,
    squeeze,
    sum,
)

CHAINS: dict[str, tuple[list[Stage], Any]] = {
    "sum": ([sum("channels")], lambda y: y.sum(1)),
    "sum, then elements": ([sum(1), scale(2), relu()], lambda y: (2 * y.sum(1)).relu()),
    "flatten": ([flatten()], lambda y: y.flatten(1)),
    "flatten space": ([max_pool(2), flatten(2)], lambda y: torch.max_pool2d(y, 2).flatten(2)),
    "squeeze": (
        [sum("channels", keepdim=True), squeeze(1)],
        lambda y: y.sum(1),
    ),
    "both": ([sum(-3), flatten()], lambda y: y.sum(1).flatten(1)),
    "mean of space": ([mean("space")], lambda y: y.mean((2, 3))),
    "largest of all": ([amax("all")], lambda y: y.amax((1, 2, 3))),
    "norm": ([group_norm(2), flatten()], lambda y: torch.group_norm(y, 2).flatten(1)),
}


def integers(*dims: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(dims))
    return torch.randint(-2, 3, dims, generator=generator).float()


X, W = integers(2, 3, 5, 4), integers(3, 4, 3, 3)
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_form(name: str, layout: str, backend: str) -> None:
    stages, theirs = CHAINS[name]
    x = X.contiguous(memory_format=LAYOUTS[layout])
    expected = theirs(torch.nn.functional.conv_transpose2d(X, W))

    def call(**options: Any) -> Tensor:
        return transfuse.conv_transpose(x, W, then=stages, backend=backend, **options)

    try:
        y = call()
    except UnsupportedError:
        assert name in ("mean of space", "largest of all"), "these are no affair of the core's"
        return
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    if name == "flatten":
        assert y.is_contiguous(), "as torch gives it"
    # Every second place of a larger tensor.
    memory = torch.full([2 * n for n in expected.shape], torch.nan)
    out = memory[tuple(slice(None, None, 2) for _ in expected.shape)]
    assert call(out=out) is out
    torch.testing.assert_close(out, y, rtol=0, atol=0)
    assert memory.isnan().sum() == memory.numel() - out.numel()


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_unbatched(backend: str) -> None:
    options = {"then": [sum("channels"), flatten()], "backend": backend}
    expected = torch.nn.functional.conv_transpose2d(X[0], W).sum(0).flatten()
    y = transfuse.conv_transpose(X[0], W, **options)
    assert torch.equal(y, expected)
    out = torch.empty_like(expected)
    assert transfuse.conv_transpose(X[0], W, out=out, **options) is out
    assert torch.equal(out, expected)
    with pytest.raises(
        RuntimeError, match=r"expected output of 1 axes, unbatched like .* \[1, 42\]"
    ):
        transfuse.conv_transpose(X[0], W, out=out[None], **options)


def test_out_of_another_form_is_refused() -> None:
    out = torch.full((2, 1, 7, 6), torch.nan)
    with pytest.raises(RuntimeError, match=r"output of shape \[2, 7, 6\], but got \[2, 1, 7, 6\]"):
        transfuse.conv_transpose(X, W, then=[sum("channels")], out=out)
    assert out.isnan().all()


def test_cat_with_a_skip() -> None:
    skip = integers(2, 5, 7, 6)
    y = transfuse.conv_transpose(X, W, then=[relu(), cat(skip), flatten(2)])
    expected = torch.nn.functional.conv_transpose2d(X, W).relu()
    assert torch.equal(y, torch.cat((expected, skip), 1).flatten(2))


def test_gradients_go_through() -> None:
    x = X.clone().requires_grad_()
    transfuse.conv_transpose(x, W, then=[mean("space"), flatten()]).square().sum().backward()
    theirs = X.clone().requires_grad_()
    torch.nn.functional.conv_transpose2d(theirs, W).mean((2, 3)).square().sum().backward()
    torch.testing.assert_close(x.grad, theirs.grad)
