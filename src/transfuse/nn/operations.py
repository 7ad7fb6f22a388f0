"""A module for each named operator, made from its declaration."""

import math
import re
from collections.abc import Mapping
from functools import cache
from inspect import Parameter as Argument
from inspect import Signature, cleandoc
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.init import _calculate_fan_in_and_fan_out

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.nn.base import Layer, Place, Told
from transfuse.nn.layers import LAYERS
from transfuse.operators import Operator
from transfuse.operators.declaration import number
from transfuse.problem import Problem
from transfuse.stages import Number

LARGE = 2**12
"""A size of the input at which every stage has something to see, for shapes of parameters."""
ONES = frozenset({"weight", "factor", "divisor", "running_var"})
"""Arguments of stages that begin as 1: factors, and variances. All others begin as 0."""


def module_name(slug: str) -> str:
    """The module of an operator: ``conv-transpose3d-max-max-sum`` is ConvTranspose3dMaxMaxSum."""
    return "".join(word.capitalize() for word in slug.split("-"))


class Operation(Layer):
    """What the module of an operator does; ``module_of`` makes its class."""

    operator: ClassVar[Operator]
    arguments: ClassVar[Signature]
    """Of the constructor, without ``self``."""
    places: ClassVar[tuple[Place, ...]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            bound = self.arguments.bind(*args, **kwargs)
        except TypeError as error:
            expected = ", ".join(self.arguments.parameters)
            raise TypeError(f"{type(self).__name__}: {error}; it takes ({expected})") from None
        bound.apply_defaults()
        given = bound.arguments
        numbers = {p.name: number(p, given.pop(p.name)) for p in self.operator.scalars}
        super().__init__(**given, bias=False)
        self.scalars = numbers
        """The numbers of the operator, by their names."""
        chain = self.operator.chain.bind(numbers)
        made = {"device": given["device"], "dtype": given["dtype"]}
        for name, dims in chain.dims(self._large()):
            tensor = torch.empty(dims, **made)
            if name in chain.updates:
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, Parameter(tensor))
        self._reset_operands()

    def _large(self) -> Problem:
        return Problem(
            batch=1,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            spatial=(LARGE,) * self.rank,
            kernel=self.kernel_size,
            stride=self.stride,
            padding=(0,) * self.rank,
            dilation=self.dilation,
            output_padding=(0,) * self.rank,
            groups=self.groups,
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]
        self._reset_operands()

    def _reset_operands(self) -> None:
        """The convolution's bias as torch draws it, factors as 1, all others as 0."""
        chain = self.operator.chain
        roles = {name: key for stage in chain.stages for key, name in stage.parameters()}
        with torch.no_grad():
            for name in self.operator.operands:
                tensor = self._parameters.get(name, self._buffers.get(name))
                if tensor is None:  # torch's constructor asks before there are any
                    continue
                if name == chain.conv.bias:
                    fan, _ = _calculate_fan_in_and_fan_out(self.weight)
                    bound = 1 / math.sqrt(fan) if fan else 0
                    tensor.uniform_(-bound, bound)
                else:
                    tensor.fill_(1 if roles[name] in ONES else 0)

    def _told(self) -> Told:
        return Told(self.operator.chain, self.places, self.scalars)

    def _as_function(
        self,
        chain: Chain,
        input: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, Number],
        options: Mapping[str, Any],
    ) -> Tensor:
        known = self.operator.signature.parameters
        given = {name: value for name, value in options.items() if name in known}
        return self.operator(input, weight, *operands.values(), **scalars, **given)

    def extra_repr(self) -> str:
        given = {**vars(self), **self.scalars}
        told = [f"{self.in_channels}, {self.out_channels}"]
        for name, each in self.arguments.parameters.items():
            usual = each.default in (given.get(name), None)
            usual = usual or given[name] == (each.default,) * self.rank
            if name not in ("in_channels", "out_channels") and not usual:
                told.append(f"{name}={given[name]}")
        return ", ".join(told)


@cache
def module_of(operator: Operator) -> type[Operation]:
    """The class whose modules hold an operator's weight and operands, and call it."""
    name = module_name(operator.slug)
    kind: Any = type(name, (Operation, LAYERS[operator.rank]), {"operator": operator})
    arguments = _signature(operator)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        Operation.__init__(self, *args, **kwargs)

    own = Argument("self", Argument.POSITIONAL_OR_KEYWORD)
    __init__.__signature__ = arguments.replace(  # type: ignore[attr-defined]
        parameters=[own, *arguments.parameters.values()]
    )
    kind.__init__, kind.arguments = __init__, arguments
    kind.places = tuple((name, None, name) for name in operator.operands)
    kind.__module__, kind.__qualname__ = "transfuse.nn", name
    kind.__doc__ = _document(operator, name, arguments)
    made: type[Operation] = kind
    return made


def _signature(operator: Operator) -> Signature:
    """The layer's arguments; by keyword the numbers and options that the operator's call takes."""
    sizes = {"in_channels": int, "out_channels": int, "kernel_size": Size}
    arguments = [
        Argument(name, Argument.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in sizes.items()
    ]
    taken = [p for p in operator.signature.parameters.values() if p.kind is Argument.KEYWORD_ONLY]
    arguments += [p for p in taken if p.name not in ("output_size", "out", "backend", "precision")]
    arguments += [
        Argument(name, Argument.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (
            ("device", torch.device | str | int | None),
            ("dtype", torch.dtype | None),
        )
    ]
    return Signature(arguments)


_DESCRIBED = {
    "in_channels": "channels of the convolution's input",
    "out_channels": "channels of its output",
    "kernel_size": "size of the kernel; one for all axes, or one for each",
    "device": "where the parameters are. Default: torch's",
    "dtype": "their type. Default: torch's",
}


def _document(operator: Operator, name: str, arguments: Signature) -> str:
    """The docstring of the operator as that of its module, with an example that runs."""
    text = cleandoc(operator.__doc__ or "")
    head = re.split(r"^Args:$", text, flags=re.MULTILINE)[0].rstrip()
    described = {**_described(_section(text, "Args")), **_DESCRIBED}
    tensors = ", ".join(f"``{each}``" for each in ("weight", *operator.operands))
    found = f"{head}\n\nAs a module that owns {tensors}.\n\nArgs:\n"
    for each in arguments.parameters:
        found += f"    {each}: {described.get(each, 'a number that the document describes')}\n"
    if shape := _section(text, "Shape"):
        found += f"\nShape:\n{shape}"
    return found + _example(operator, name)


def _section(text: str, heading: str) -> str:
    """The lines under a heading of a docstring, indented as they are."""
    found = re.search(rf"^{heading}:\n((?:    .*\n|\n(?=    ))*)", text + "\n", re.MULTILINE)
    return found[1] if found else ""


def _described(section: str) -> dict[str, str]:
    """What stands behind each name that begins a line, with the lines that go on."""
    found = re.findall(r"^    (\w+): ((?:.*\n)(?:        .*\n)*)", section, re.MULTILINE)
    return {name: text.rstrip() for name, text in found}


def _example(operator: Operator, name: str) -> str:
    if not operator.cases:
        return ""
    case = operator.case("small" if "small" in operator.cases else operator.cases[0])
    problem = case.problem
    given = {each: getattr(problem, each) for each in operator.options}
    given |= case.scalars
    given |= {"groups": problem.groups} if operator.grouped else {}
    sizes = f"{problem.in_channels}, {problem.out_channels}, {problem.kernel}"
    options = "".join(f", {key}={value!r}" for key, value in given.items())
    result = list(operator.bound(case).result(problem))
    return (
        "\nExample::\n\n"
        f"    >>> layer = transfuse.nn.{name}(\n    ...     {sizes}{options}\n    ... )\n"
        f"    >>> layer(torch.randn{problem.input.dims}).shape\n"
        f"    torch.Size({result})\n"
    )
