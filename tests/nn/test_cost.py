"""What a module's call takes beside computing, counted: no more than the function's.

``Module.__call__`` is torch's and the same for all modules; what is counted is ``forward``.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from tests.small_calls import OURS
from tests.test_host_cost import counted, one_thread  # noqa: F401 a fixture for each test
from transfuse import nn, stages
from transfuse.backends.cpu import library, weights
from transfuse.nn.operations import module_of
from transfuse.operators import OPERATORS

built = pytest.mark.skipif(library.path() is None, reason="the compiled core is not installed")


def total(call: Callable[[], Any]) -> tuple[int, object]:
    with torch.no_grad():
        for _ in range(3):
            call()
        found = counted(call)
    return found.total(), found


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer(bias: bool, rank: int) -> None:
    layer = getattr(nn, f"ConvTranspose{rank}d")(4, 4, 4, stride=2, bias=bias)
    x = torch.randn(1, 4, *(8,) * rank)
    ours, what = total(lambda: layer.forward(x))
    stride = (2,) * rank
    function, _ = total(lambda: OURS[rank](x, layer.weight, layer.bias, stride=stride))
    # The function's caller looks both tensors up, which is no part of its cost.
    assert ours <= function - 2, what


def chained() -> tuple[nn.FusedConvTranspose, Callable[[Tensor], Tensor]]:
    """A layer, and the function with the stages that its modules mean."""
    norm = torch.nn.GroupNorm(2, 4)
    layer = nn.FusedConvTranspose(
        4, 4, (4, 4), stride=2, then=[torch.nn.Sigmoid(), norm, torch.nn.MaxPool2d(2)]
    )
    tensors = (layer.weight, layer.bias, norm.weight, norm.bias)

    def function(x: Tensor) -> Tensor:
        weight, bias, scale, shift = tensors
        then = [stages.sigmoid(), stages.group_norm(2, scale, shift), stages.max_pool(2)]
        return transfuse.conv_transpose(x, weight, bias, stride=(2, 2), then=then)

    return layer, function


def test_a_chain() -> None:
    """Nothing is built, named or hashed again."""
    layer, function = chained()
    x = torch.randn(1, 4, 8, 8)
    ours, what = total(lambda: layer.forward(x))
    assert ours <= total(lambda: function(x))[0], what
    assert ours <= 20, what
    assert not any("Stage" in name or "Map" in name or "Chain" in name for name in what), what  # type: ignore[attr-defined]


def test_a_batch_norm_in_evaluation() -> None:
    norm = torch.nn.BatchNorm2d(4)
    layer = nn.FusedConvTranspose(4, 4, 4, stride=2, then=[norm, torch.nn.ReLU()]).eval()
    x = torch.randn(1, 4, 8, 8)
    ours, what = total(lambda: layer.forward(x))
    assert ours <= 20, what


@pytest.mark.parametrize("slug", OPERATORS)
def test_an_operator(slug: str) -> None:
    operator = OPERATORS[slug]
    case = operator.case("small")
    given = {each: getattr(case.problem, each) for each in operator.options} | {**case.scalars}
    given |= {"groups": case.problem.groups} if operator.grouped else {}
    problem = case.problem
    layer = module_of(operator)(problem.in_channels, problem.out_channels, problem.kernel, **given)
    x = torch.randn(problem.input.dims)
    tensors = [x, *layer.parameters()]
    ours, what = total(lambda: layer.forward(x))
    assert ours <= total(lambda: operator(*tensors, **given))[0], what


@built
@pytest.mark.parametrize("kind", ["layer", "chain", "operator"])
def test_weights_are_packed_once_for_each_version(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs: list[int] = []
    pack = weights._pack

    def counting(*args: Any) -> Any:
        packs.append(1)
        return pack(*args)

    monkeypatch.setattr(weights, "_pack", counting)
    makes: dict[str, Callable[[], torch.nn.Module]] = {
        "layer": lambda: nn.ConvTranspose2d(16, 16, 4, stride=2),
        "chain": lambda: nn.FusedConvTranspose(16, 16, (4, 4), then=[torch.nn.ReLU()]),
        "operator": lambda: nn.ConvTranspose2dSoftmaxBiasaddScalingSigmoid(
            16, 16, 4, scaling_factor=2.0, stride=2
        ),
    }
    layer = makes[kind]()
    x = torch.randn(2, 16, 9, 9)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for version in range(1, 4):
        with torch.no_grad():
            for _ in range(3):
                layer(x)
        assert len(packs) == version
        for each in layer.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()


def test_no_module_is_kept_by_its_calls() -> None:
    import gc
    import weakref

    layer, _ = chained()
    x = torch.randn(1, 4, 8, 8)
    for _ in range(3):
        layer(x)
    gone = [weakref.ref(each) for each in (layer, layer.weight, layer.then[1].weight)]
    del layer, _
    gc.collect()
    assert [each() for each in gone] == [None, None, None]
