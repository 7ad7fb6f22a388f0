"""A module for each named operator: of its declaration, one that is declared later included."""

import inspect
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from tests.nn.beside import near, stepped
from tests.test_additions import sixth  # noqa: F401 the operator of CONTRIBUTING.md
from transfuse import nn
from transfuse.nn.operations import Operation, module_name, module_of
from transfuse.operators import OPERATORS, Operator

MODULES = {
    "conv-transpose-2d-square-input-asym-kernel": "ConvTranspose2dSquareInputAsymKernel",
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": (
        "ConvTranspose2dSoftmaxBiasaddScalingSigmoid"
    ),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": "ConvTranspose3dAvgpoolClampSoftmaxMultiply",
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": (
        "ConvTranspose2dBatchnormTanhMaxpoolGroupnorm"
    ),
    "conv-transpose3d-max-max-sum": "ConvTranspose3dMaxMaxSum",
}


def made(operator: Operator, case: str, **options: Any) -> tuple[Operation, Tensor]:
    """The module of a case in float64, and an input."""
    found = operator.case(case)
    problem = found.problem
    given = {each: getattr(problem, each) for each in operator.options} | {**found.scalars}
    given |= {"groups": problem.groups} if operator.grouped else {}
    torch.manual_seed(2)
    sizes = (problem.in_channels, problem.out_channels, problem.kernel)
    layer = module_of(operator)(*sizes, **given, dtype=torch.float64, **options)
    return layer, torch.randn(problem.input.dims, dtype=torch.float64)


def test_names_follow_from_the_functions() -> None:
    assert {slug: module_name(slug) for slug in OPERATORS} == MODULES
    assert set(MODULES.values()) <= {*nn.__all__, *dir(nn)}
    for slug, name in MODULES.items():
        assert getattr(nn, name) is module_of(OPERATORS[slug])
        assert getattr(nn, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'transfuse.nn' has no attribute 'ConvTranspose4d'"):
        nn.ConvTranspose4d  # noqa: B018


@pytest.mark.parametrize("case", ["small", "ragged"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_values_and_gradients_are_the_functions(slug: str, case: str) -> None:
    operator = OPERATORS[slug]
    layer, x = made(operator, case)
    with torch.no_grad():
        for each in layer.parameters():
            each.normal_()
    tensors = [getattr(layer, name) for name in ("weight", *operator.operands)]
    assert [name for name, _ in layer.named_parameters()] == ["weight", *operator.operands]
    found = operator.case(case)
    given = {each: getattr(found.problem, each) for each in operator.options} | {**found.scalars}
    given |= {"groups": found.problem.groups} if operator.grouped else {}

    def function(x: Tensor) -> Tensor:
        return operator(x, *tensors, backend="eager", **given)

    assert near(stepped(layer, x), stepped(layer, x, function))
    with torch.no_grad():
        assert layer(x).equal(operator(x, *tensors, **given))


def test_initial_values() -> None:
    """Weight and convolution's bias as torch draws them; factors are 1, terms 0."""
    layer, _ = made(OPERATORS["conv-transpose2d-softmax-biasadd-scaling-sigmoid"], "small")
    torch.manual_seed(2)
    theirs = torch.nn.ConvTranspose2d(3, 8, 4, dtype=torch.float64)
    assert layer.weight.equal(theirs.weight)
    assert layer.conv_bias.equal(theirs.bias)
    assert not layer.add_bias.any()
    norm, _ = made(OPERATORS["conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"], "small")
    for name in ("bn", "gn"):
        assert getattr(norm, f"{name}_weight").eq(1).all()
        assert getattr(norm, f"{name}_bias").eq(0).all()
    with torch.no_grad():
        for each in norm.parameters():
            each.fill_(7)
    norm.reset_parameters()
    assert norm.gn_weight.eq(1).all()
    assert not norm.weight.eq(7).any()


@pytest.mark.parametrize("slug", OPERATORS)
def test_signature_and_print(slug: str) -> None:
    kind = module_of(OPERATORS[slug])
    names = list(inspect.signature(kind).parameters)
    assert names[:3] == ["in_channels", "out_channels", "kernel_size"]
    assert names[-2:] == ["device", "dtype"]
    function = inspect.signature(OPERATORS[slug]).parameters
    assert names[3:-2] == [
        name
        for name, each in function.items()
        if each.kind is each.KEYWORD_ONLY
        and name not in ("output_size", "out", "backend", "precision")
    ]
    layer, _ = made(OPERATORS[slug], "small")
    assert isinstance(layer, getattr(torch.nn, f"ConvTranspose{layer.rank}d"))
    for name, value in layer.scalars.items():
        assert f"{name}={value}" in repr(layer)
    assert "bias=False" not in repr(layer)


def test_wrong_arguments_are_named() -> None:
    kind = nn.ConvTranspose3dMaxMaxSum
    with pytest.raises(TypeError, match=r"dilation.*it takes \(in_channels, out_channels, kernel"):
        kind(3, 4, 5, dilation=2)
    with pytest.raises(TypeError, match="scaling_factor"):
        nn.ConvTranspose2dSoftmaxBiasaddScalingSigmoid(3, 4, 5)
    with pytest.raises(TypeError, match="scaling_factor must be a real number, not str"):
        nn.ConvTranspose2dSoftmaxBiasaddScalingSigmoid(3, 4, 5, scaling_factor="a")
    with pytest.raises(RuntimeError, match="num_groups=3 does not divide the 8 channels"):
        nn.ConvTranspose2dBatchnormTanhMaxpoolGroupnorm(3, 8, 5, num_groups=3)


def test_output_size_and_torch_function() -> None:
    class Seen(Tensor):
        functions: list[Any] = []  # noqa: RUF012 one list for all of them

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            cls.functions.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    layer, x = made(OPERATORS["conv-transpose2d-softmax-biasadd-scaling-sigmoid"], "small")
    y = layer(x, output_size=(8, 11))
    assert y.shape[2:] == (8, 11)
    seen = layer(x.as_subclass(Seen), output_size=(8, 11))
    assert Seen.functions.count(layer.operator) == 1
    assert seen.as_subclass(Tensor).equal(y)


def test_one_that_is_declared_later(sixth: Operator) -> None:  # noqa: F811
    name = "ConvTranspose2dLeakyreluMaxpoolGroupnormSigmoid"
    assert name in dir(nn)
    kind = getattr(nn, name)
    layer, x = made(sixth, "small")
    assert type(layer) is kind
    with torch.no_grad():
        for each in layer.parameters():
            each.normal_()
    y = torch.nn.functional.conv_transpose2d(x, layer.weight, layer.conv_bias, 2)
    y = torch.nn.functional.max_pool2d(torch.nn.functional.leaky_relu(y, 0.2), 2)
    y = torch.nn.functional.group_norm(y, 4, layer.gn_weight, layer.gn_bias).sigmoid()
    assert (layer(x) - y).abs().max() <= 1e-12
    assert pickle.loads(pickle.dumps(layer))(x).equal(layer(x))
    assert re.search(r"^Args:\n    in_channels: ", kind.__doc__, re.MULTILINE)
    assert "negative_slope: " in kind.__doc__
    assert ">>> layer = transfuse.nn." in kind.__doc__


def test_the_function_is_the_very_operator() -> None:
    assert nn.ConvTranspose3dMaxMaxSum.operator is transfuse.conv_transpose3d_max_max_sum
