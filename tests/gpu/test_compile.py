"""``torch.compile`` of calls and of fused models on a GPU: whole graphs, right results."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transfuse
from tests.fusing import models
from transfuse.fusing.compiling import transfuse as backend
from transfuse.stages import add, group_norm, max_pool, scale, sigmoid

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2}
"""Products of few channels, which the float32 of these tests multiplies without tf32."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x, w, b, stride=2).cos()


def stages(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    then = [sigmoid(), scale(2.5), group_norm(2, b, b), max_pool(2), add(b)]
    return transfuse.conv_transpose(x.sin(), w, b, stride=2, then=then)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("function", [plain, stages])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_call_is_one_graph(
    function: Callable[..., Tensor], dtype: torch.dtype, dynamic: bool
) -> None:
    """And so are its gradients."""
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for size in (7, 9):
        torch.manual_seed(size)
        shapes = ((2, 8, size, 8), (8, 6, 3, 3), (6,))
        given = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
        with torch.no_grad():
            expect_close(compiled(*given), function(*given))
        for tensor in given:
            tensor.requires_grad_()
        y = compiled(*given)
        gradient = torch.randn_like(y)
        found = torch.autograd.grad(y, given, gradient)
        right = torch.autograd.grad(function(*given), given, gradient)
        for one, other in zip(found, right, strict=True):
            expect_close(one, other)


def test_tf32_as_it_is_set_when_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    x = torch.randn(2, 8, 7, 8, device="cuda")
    w, b = torch.randn(8, 6, 3, 3, device="cuda"), torch.randn(6, device="cuda")
    assert torch.equal(
        torch.compile(transfuse.conv_transpose2d, fullgraph=True)(x, w, b),
        transfuse.conv_transpose2d(x, w, b),
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("make", "dims"),
    [
        (models.decoder, (1, 3, 4, 4)),
        (models.FreeCode, (1, 3, 4, 4)),
        (models.Vocoder, (1, 4, 6)),
    ],
)
def test_fused_models(
    make: Callable[[], nn.Module], dims: tuple[int, ...], dtype: torch.dtype, training: bool
) -> None:
    """Fused and then compiled, and by the backend: one graph, and the eager model's results."""
    torch.manual_seed(0)
    model = make().to("cuda", dtype).train(training)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(dims, device="cuda", dtype=dtype)
    ways: list[Any] = [
        model,
        torch.compile(transfuse.fuse(model), fullgraph=True),
        torch.compile(model, backend=backend, fullgraph=True),
    ]
    results = []
    for way in ways:
        model.load_state_dict(state)  # running statistics move
        results.append(way(x).detach())
    for y in results[1:]:
        expect_close(y, results[0])


def expect_close(found: Tensor, right: Tensor) -> None:
    limit = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, right, rtol=limit, atol=limit)
