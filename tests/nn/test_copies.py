"""Copies, files, types and devices: what torch does to modules leaves these as they should be."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.utils import skip_init

from tests.nn.beside import integers, same, stepped, with_integers
from transfuse import nn, stages
from transfuse.maths import sin

wavy = stages.pointwise(lambda x, a: x + a * sin(x))


def fused() -> Module:
    return nn.FusedConvTranspose(
        4, 8, (3, 3), stride=2,
        before=[torch.nn.LeakyReLU(0.5)],
        then=[torch.nn.BatchNorm2d(8), stages.scale(torch.nn.Parameter(torch.ones(8))),
              stages.add(torch.ones(8)), wavy(0.5), stages.pow(2), torch.nn.MaxPool2d(2)],
    )  # fmt: skip


MODULES: dict[str, Callable[[], Module]] = {
    "layer": lambda: nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2),
    "without bias": lambda: nn.ConvTranspose2d(4, 8, 3, bias=False),
    "fused": fused,
    "operator": lambda: nn.ConvTranspose2dBatchnormTanhMaxpoolGroupnorm(4, 8, 5, num_groups=2),
}
X = integers(2, 4, 5, 4)


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> Module:
    torch.manual_seed(0)
    made = MODULES[request.param]()
    made(X)  # what a call keeps must not travel
    return made


def saved(module: Module) -> Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    found: Module = torch.load(file, weights_only=False)
    return found


COPIES: dict[str, Callable[[Module], Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved,
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_the_same_and_apart(how: str, module: Module) -> None:
    other = COPIES[how](module)
    assert vars(other).keys() == vars(module).keys() - {"_kept"}
    assert type(other) is type(module)
    assert repr(other) == repr(module)
    assert same(stepped(other, X), stepped(module, X))
    for name, tensor in module.state_dict().items():
        assert other.state_dict()[name].equal(tensor)
    right = module.eval()(X)
    with torch.no_grad():
        for each in other.parameters():
            each.add_(1)
    assert module(X).equal(right)
    assert not other.eval()(X).equal(right)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_state_in_a_file(weights_only: bool, module: Module, tmp_path: Path) -> None:
    torch.save(module.state_dict(), tmp_path / "state.pt")
    fresh = copy.deepcopy(module)
    with torch.no_grad():
        for each in fresh.parameters():
            each.zero_()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=weights_only))
    assert same(stepped(fresh, X), stepped(module, X))


@pytest.mark.long
def test_a_module_in_a_new_process(tmp_path: Path) -> None:
    """Operators' modules are found by their names before anybody asked for them."""
    layer = MODULES["operator"]()
    torch.save((layer, X, layer(X)), tmp_path / "layer.pt")
    code = f"""
import torch
layer, x, y = torch.load({str(tmp_path / "layer.pt")!r}, weights_only=False)
print(type(layer).__module__, layer(x).equal(y))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout.split() == ["transfuse.nn", "True"], done.stderr


def test_types(module: Module) -> None:
    module = with_integers(module)
    for change in (Module.double, Module.half, Module.bfloat16, Module.float):
        assert change(module) is module
        (dtype,) = {each.dtype for each in module.parameters()}
        y = module(X.to(dtype))
        assert y.dtype == dtype
        with torch.no_grad():
            module(X.to(dtype))
    assert module.to(torch.float64)(X.double()).dtype == torch.float64
    with pytest.raises(RuntimeError, match="same type"):
        module(X)


def test_layouts(module: Module) -> None:
    right = module.eval()(X)
    last = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert last.weight.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        found = last(X.to(memory_format=torch.channels_last))
    assert (found - right).abs().max() <= 1e-4 * right.abs().max()


def test_meta_and_back(module: Module) -> None:
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    expected = stepped(copy.deepcopy(module), X)
    empty = module.to("meta")
    assert all(each.is_meta for each in empty.state_dict().values())
    assert empty(X.to("meta")).shape == expected[0].shape
    empty.load_state_dict(state, assign=True)
    for name, tensor in empty.state_dict().items():
        assert tensor.data_ptr() == state[name].data_ptr()
    for each in empty.parameters():
        each.requires_grad_()
    assert same(stepped(empty, X), expected)


def test_made_on_meta() -> None:
    with torch.device("meta"):
        around = [make() for make in MODULES.values()]
    inside = [
        nn.ConvTranspose2d(4, 8, 3, device="meta"),
        nn.FusedConvTranspose(4, 8, (3, 3), then=[torch.nn.ReLU()], device="meta"),
        nn.ConvTranspose3dMaxMaxSum(4, 8, 3, device="meta"),
    ]
    for module in (*around, *inside):
        assert all(each.is_meta for each in module.parameters())


def test_skip_init() -> None:
    theirs = torch.nn.ConvTranspose2d(4, 8, 3, stride=2)
    ours = skip_init(nn.ConvTranspose2d, 4, 8, 3, stride=2)
    ours.load_state_dict(theirs.state_dict())
    with_integers(ours), with_integers(theirs)
    assert ours(X).equal(theirs(X))
    relu = skip_init(nn.FusedConvTranspose, 4, 8, (3, 3), stride=2, then=[torch.nn.ReLU()])
    relu.load_state_dict(ours.state_dict())
    assert relu(X).equal(theirs(X).relu())
    kind = nn.ConvTranspose2dSoftmaxBiasaddScalingSigmoid
    assert skip_init(kind, 4, 8, 3, scaling_factor=2.0).add_bias.shape == (8,)


def test_functional_call(module: Module) -> None:
    """On tensors of its own; the module's are neither read nor written."""
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    other = with_integers(copy.deepcopy(module))
    given = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with torch.no_grad():
        assert functional_call(module, given, (X,)).equal(other(X))
    for name, tensor in module.state_dict().items():
        assert tensor.equal(before[name])
    for name, tensor in other.state_dict().items():  # running statistics among them
        assert tensor.equal(given[name])


def test_torch_func() -> None:
    layer = with_integers(nn.ConvTranspose2d(4, 8, 3, stride=2))
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters, X)
    loss(parameters, X).backward()
    for name, each in layer.named_parameters():
        assert each.grad is not None
        assert found[name].equal(each.grad)
    many = torch.vmap(loss, (None, 0))(parameters, torch.stack((X, 2 * X)))
    assert many.tolist() == [loss(parameters, X).item(), loss(parameters, 2 * X).item()]


def test_parameters_replaced_one_by_one(module: Module) -> None:
    other = with_integers(copy.deepcopy(module))
    for path, parameter in list(module.named_parameters()):
        owner, _, name = path.rpartition(".")
        values = dict(other.named_parameters())[path].detach().clone()
        setattr(module.get_submodule(owner), name, torch.nn.Parameter(values))
        assert parameter is not module.get_parameter(path)
    assert same(stepped(module, X), stepped(other, X))


def test_replicas_of_data_parallel() -> None:
    """As ``torch.nn.DataParallel`` makes them: tensors are plain attributes of the copies."""
    module = fused()

    def replica(original: Module) -> Any:
        made = original._replicate_for_data_parallel()
        made._modules = {name: replica(each) for name, each in original._modules.items()}  # type: ignore[arg-type]
        for name, each in original._parameters.items():
            setattr(made, name, None if each is None else 2 * each)
        for name, buffer in original._buffers.items():
            setattr(made, name, buffer)
        return made

    module.eval()(X)
    doubled = copy.deepcopy(module)
    with torch.no_grad():
        for each in doubled.parameters():
            each.mul_(2)
    assert replica(module)(X).equal(doubled(X))
