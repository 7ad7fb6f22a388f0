"""What a fused model reads of its modules: the tensors that they have now, without a search."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import transfuse
from tests.fusing.alike import drawn
from tests.test_host_cost import counted
from transfuse.fusing.watching import State

X = drawn(2, 3, 5, 5)


class Asking(nn.ConvTranspose2d):
    """Its weight is not the one that it keeps; a graph has what makes the difference."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        kept: Any = self._parameters["weight"]
        kept.data = drawn(*kept.shape)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return -found if name == "weight" else found


class Held(nn.Module):
    """A tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tensor = drawn(3, 4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv_transpose2d(x, self.tensor, None, 2)


def made(layer: Callable[[], nn.Module] = lambda: nn.ConvTranspose2d(3, 4, 2, 2)) -> nn.Module:
    """A layer, deep in a model."""
    torch.manual_seed(0)
    inner = nn.Sequential(layer(), nn.BatchNorm2d(4), nn.ReLU())
    last = nn.Sequential(nn.Sequential(nn.ConvTranspose2d(4, 2, 3, bias=False), nn.Sigmoid()))
    return nn.Sequential(nn.Sequential(nn.Sequential(inner)), last).double().eval()


def replaced(model: Any) -> None:
    layer = model[0][0][0][0]
    layer.weight = nn.Parameter(-layer.weight.detach())


def moved(model: Any) -> None:
    """Another dictionary in place of a module's."""
    layer = model[0][0][0][0]
    layer._parameters = {k: nn.Parameter(v.detach() + 1) for k, v in layer._parameters.items()}


def other_child(model: Any) -> None:
    model[0][0][0][0] = nn.ConvTranspose2d(3, 4, 2, 2).double()


def other_buffer(model: Any) -> None:
    model[0][0][0][1].running_mean = drawn(4)


def parametrized(model: Any) -> None:
    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(model[0][0][0][0], "weight", Twice())


def hidden(model: Any) -> None:
    """An attribute of the object, found before its parameter."""
    vars(model[0][0][0][0])["weight"] = drawn(3, 4, 2, 2)


def shorter(model: Any) -> None:
    layer = model[1][0][0]
    layer.weight = nn.Parameter(layer.weight.detach()[:, :1].contiguous())


def reordered(model: Any) -> None:
    """Other strides, the same shape."""
    layer = model[1][0][0]
    layer.weight = nn.Parameter(layer.weight.detach().transpose(2, 3))


CHANGES = [replaced, moved, other_child, other_buffer, parametrized, hidden, shorter, reordered]


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_a_change_is_seen(change: Callable[[nn.Module], None]) -> None:
    plain, fused = made(), transfuse.fuse(made())
    for _ in range(3):
        assert (fused(X) - plain(X)).abs().max() < 1e-12
    changed = plain(X)
    for each in (plain, fused):
        torch.manual_seed(1)
        change(each)
    for _ in range(3):
        assert (fused(X) - plain(X)).abs().max() < 1e-12
    assert plain(X).shape != changed.shape or not torch.equal(plain(X), changed)


@torch.no_grad()
@pytest.mark.parametrize("layer", [lambda: Asking(3, 4, 2, 2), Held], ids=["asking", "held"])
def test_tensors_are_read_as_their_module_has_them(layer: Callable[[], nn.Module]) -> None:
    plain, fused = made(layer), transfuse.fuse(made(layer))
    for _ in range(3):
        assert (fused(X) - plain(X)).abs().max() < 1e-12


def shaped(weight: Tensor) -> tuple[Any, State]:
    """A module, and a state of it that the sizes of its tensors are part of."""
    layer = nn.ConvTranspose2d(3, 4, 2)
    layer.weight = nn.Parameter(weight)
    names = ["weight", "bias"]
    return layer, State([layer], layer, [(layer, name) for name in names])


OTHERS: dict[str, Callable[[], Tensor]] = {
    "shape": lambda: drawn(3, 4, 3, 2),
    "strides": lambda: drawn(3, 4, 2, 2).transpose(2, 3),
    "type": lambda: drawn(3, 4, 2, 2).float(),
    "device": lambda: drawn(3, 4, 2, 2).to("meta"),
    "nested": lambda: torch.nested.nested_tensor([drawn(4, 2, 2), drawn(4, 3, 2)]),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_other_sizes_are_another_state(what: str) -> None:
    layer, state = shaped(drawn(3, 4, 2, 2))
    first = layer.weight
    for _ in range(2):
        assert state.holds()
        assert state.holds()
        layer.weight = nn.Parameter(OTHERS[what]())
        assert not state.holds()
        assert not state.holds()
        layer.weight = first


def test_values_and_modes_are_not() -> None:
    layer, state = shaped(drawn(3, 4, 2, 2))
    for _ in range(2):
        layer.weight = nn.Parameter(drawn(3, 4, 2, 2), requires_grad=False)
        assert state.holds()
        with torch.inference_mode(), torch.autocast("cpu"):
            assert state.holds()
            layer.weight = nn.Parameter(drawn(3, 4, 2, 2))
            assert state.holds()
        layer.bias = layer.weight  # one tensor under two names: of another shape
        assert not state.holds()
        layer.bias = nn.Parameter(torch.zeros(4))
        assert state.holds()


@torch.no_grad()
def test_no_module_is_searched() -> None:
    """Whatever the depth: neither for tensors, nor to see that they have the same sizes."""
    fused = transfuse.fuse(made())
    for _ in range(3):
        fused(X)
    found = counted(lambda: fused.forward(X))
    assert not found["Module.__getattr__"], found


def test_dictionaries_that_look_themselves_are_asked() -> None:
    """Some libraries gather a parameter when it is looked up."""

    class Gathering(OrderedDict[str, Any]):
        asked = 0

        def __getitem__(self, name: str) -> Any:
            Gathering.asked += 1
            return super().__getitem__(name)

    fused: Any = transfuse.fuse(made())
    with torch.no_grad():
        for _ in range(3):
            fused(X)
        layer = fused[1][0][0]
        layer._parameters = Gathering(layer._parameters)
        Gathering.asked = 0
        fused(X)
    assert Gathering.asked
