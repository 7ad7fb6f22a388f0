"""Inside ``torch.compile``: traced as torch operations, or left alone as a whole."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse.stages import add, group_norm, max_pool, sigmoid

W, WIDE = torch.randn(4, 6, 3, 3), torch.randn(12)
# Sizes of their own: equal ones are one to torch.compile. The last gives a result over 1 MiB.
SMALL, OTHER, LARGE = (2, 4, 7, 9), (3, 4, 5, 8), (1, 4, 110, 110)
SOLUTION = transfuse.solution("conv-transpose-2d-square-input-asym-kernel")


def strided_bias(x: Tensor, w: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x.sin(), w, WIDE[::2], stride=2).cos()


def negated_bias(x: Tensor, w: Tensor) -> Tensor:
    bias = torch._neg_view(WIDE)[::2]
    return transfuse.conv_transpose(x, w, bias, stride=2, then=[add(WIDE[1::2]), sigmoid()]).cos()


def whole_stages(x: Tensor, w: Tensor) -> Tensor:
    stages = [group_norm(2, WIDE[::2], WIDE[1::2]), max_pool(2)]
    return transfuse.conv_transpose(x, w, stride=2, then=stages).cos()


def operator(x: Tensor, w: Tensor) -> Tensor:
    softmax = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
    return softmax(x, w, WIDE[::2], WIDE[::2], scaling_factor=2.0, stride=2) + 1


def into(x: Tensor, w: Tensor) -> Tensor:
    n, _, height, width = x.shape
    out = torch.zeros(n, 6, height + 2, width + 2)
    transfuse.conv_transpose2d(x, w, WIDE[::2], out=out)
    return out + 1


def by_solution(x: Tensor, w: Tensor) -> Tensor:
    n, _, height, width = x.shape
    out = torch.zeros(n, 6, height + 2, width + 2)
    SOLUTION(x, w, out, n, 4, 6, height, width, 3, 3, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    return out + 1


def by_name(x: Tensor, w: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x.sin(), w, WIDE[::2], stride=2, backend="cpu").cos()


def after_a_break(x: Tensor, w: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return strided_bias(x, w)


WHOLE = [strided_bias, negated_bias, whole_stages, operator]
BROKEN = [into, by_solution, by_name, after_a_break]  # the graph may be cut at the call


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    operator(torch.randn(SMALL), W)  # an operator reads its document once, which is not traced
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(function: Callable[..., Tensor], compiled: Any, *shapes: tuple[int, ...]) -> None:
    for shape in shapes:
        x = torch.randn(shape)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, W), function(x, W), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("function", WHOLE)
def test_one_graph(function: Any, dynamic: bool) -> None:
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    check(function, compiled, SMALL, OTHER, LARGE)


def test_sizes_stay_open_in_a_graph() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(strided_bias, fullgraph=True, dynamic=True, backend=counter)
    check(strided_bias, compiled, SMALL, OTHER, (4, 4, 8, 11))
    assert counter.frame_count == 1


@pytest.mark.parametrize("function", BROKEN)
def test_without_the_whole_graph(function: Any) -> None:
    check(function, torch.compile(function, backend="eager"), SMALL, SMALL, LARGE)


def test_where_nothing_is_compiled_any_more() -> None:
    """Past its limit torch runs a function as it stands, and compiles those that it calls."""
    compiled = torch.compile(by_name, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(by_name, compiled, SMALL, OTHER, LARGE, (1, 4, 3, 3))


@pytest.mark.parametrize("function", [negated_bias, operator])
def test_gradients(function: Any) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = torch.randn(SMALL)
    ours, theirs = (W.clone().requires_grad_() for _ in range(2))
    compiled(x, ours).square().sum().backward()
    function(x, theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_inductor() -> None:
    compiled = torch.compile(negated_bias, fullgraph=True)
    check(negated_bias, compiled, SMALL)
