"""A chain as an ONNX model, the form in which inference libraries take it.

``EMITTERS`` has one entry for each type of stage: the nodes it becomes. What ONNX has no operator
for (the statistics of this batch) is spelled out in those it has. Chains come as declared: what
rewrites put into a stage is not looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from transfuse.bench.peers.base import Missing, library
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.geometry import Axis
from transfuse.maths.expr import Call, Constant, Expr, Name, folded
from transfuse.maths.primitives import complete
from transfuse.problem import Problem, Shape
from transfuse.stages import ConvTranspose, Kind, Number, Operand, Stage
from transfuse.stages.norm import Norm
from transfuse.stages.pointwise import Map
from transfuse.stages.reduce import Reduce, Softmax
from transfuse.stages.shape import Cat, Flatten, Squeeze
from transfuse.stages.window import AvgPool, MaxPool, Window

INPUT, OUTPUT = "x", "y"
TYPES = {"fp32": "FLOAT", "fp16": "FLOAT16", "bf16": "BFLOAT16", "fp64": "DOUBLE"}
# The first that lets convolution and pooling have bfloat16, and the format that goes with it.
OPSET, FORMAT = 22, 10


def onnx_model(
    chain: Chain, problem: Problem, weight: Tensor, operands: Mapping[str, Tensor]
) -> Any:
    """The ``onnx.ModelProto`` of a bound chain: ``x`` in, ``y`` out, every tensor inside it."""
    onnx = library("onnx")
    kind = getattr(onnx.TensorProto, TYPES[problem.dtype])
    shapes = chain.shapes(problem)
    graph = Graph(onnx, chain.core(problem), weight, operands)
    value = INPUT
    for stage, shape in zip(chain.stages, shapes, strict=False):
        if type(stage) not in EMITTERS:
            raise _missing(stage)
        graph.shape = shape
        value = EMITTERS[type(stage)](graph, stage, value)
    result = chain.result(problem)
    formed = (graph.integers(*result),) if result != shapes[-1].dims else ()
    graph.node("Reshape" if formed else "Identity", value, *formed, to=OUTPUT)
    describe = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        graph.nodes,
        "chain",
        [describe(INPUT, kind, shapes[0].dims)],
        [describe(OUTPUT, kind, result)],
        graph.constants,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=FORMAT)


def _missing(stage: Stage) -> Missing:
    return Missing(f"no ONNX form of stage {stage} is written")


class Graph:
    """Nodes and constants so far; ``shape`` is that of the value the next stage reads."""

    shape: Shape

    def __init__(
        self, onnx: Any, problem: Problem, weight: Tensor, operands: Mapping[str, Tensor]
    ) -> None:
        self.problem = problem
        self.weight = weight
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._onnx = onnx
        self._operands = operands

    def node(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """One more node; the name of its output."""
        output = to or f"{operator}_{len(self.nodes)}"
        make = self._onnx.helper.make_node
        self.nodes.append(make(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, tensor: Tensor) -> str:
        """One more constant, from its bytes: NumPy has no bfloat16."""
        name = f"constant_{len(self.constants)}"
        types = {ELEMENTS[each].dtype: kind for each, kind in TYPES.items()} | {
            torch.int64: "INT64"
        }
        kind = getattr(self._onnx.TensorProto, types[tensor.dtype])
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        make = self._onnx.helper.make_tensor
        self.constants.append(make(name, kind, tuple(tensor.shape), raw, raw=True))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def number(self, value: Number) -> str:
        return self.constant(torch.tensor(float(value), dtype=self.weight.dtype))

    def vector(self, operand: Operand, default: float = 0.0) -> str:
        """A per-channel operand as ``(C,)``; where there is none, ``default`` for each channel."""
        if operand is None:
            return self.constant(self.weight.new_full((self.shape.c,), default))
        return self.constant(self._operand(operand).flatten())

    def value(self, operand: Number | Operand) -> str:
        """A number, or an operand as it meets the values: ``(C,)`` as ``(C, 1, …)``."""
        if isinstance(operand, int | float):
            return self.number(operand)
        given, ones = self._operand(operand), [1] * len(self.shape.spatial)
        return self.constant(given.reshape(-1, *ones) if given.dim() == 1 else given)

    def _operand(self, operand: Operand) -> Tensor:
        assert isinstance(operand, str), "a bound chain names its tensors"
        return self._operands[operand]


def _convolution(g: Graph, stage: ConvTranspose, x: str) -> str:
    p = g.problem
    bias = [] if stage.bias is None else [g.vector(stage.bias)]
    before, after, more = zip(*map(_padding, p.axes), strict=True)
    options: dict[str, Any] = {"kernel_shape": p.kernel, "strides": p.stride, "group": p.groups}
    options |= {"pads": before + after, "dilations": p.dilation, "output_padding": more}
    return g.node("ConvTranspose", x, g.constant(g.weight), *bias, **options)


def _padding(axis: Axis) -> tuple[int, int, int]:
    """Padding before and after an axis, and output padding, none of which ONNX has negative."""
    if axis.in_torch:
        return axis.padding, axis.padding, axis.output_padding
    before, after = axis.padding, axis.padding - axis.output_padding
    more = max(0, -after)
    if before < 0 or more >= max(axis.stride, axis.dilation):
        raise Missing(f"ONNX has no padding of {before} before and {after} after an axis")
    return before, max(0, after), more


def _windows(g: Graph, stage: Window) -> dict[str, Any]:
    if not stage.simple(g.problem.rank):
        raise _missing(stage)
    kernel, stride, padding = zip(*stage.windows(g.problem.rank), strict=True)
    return {"kernel_shape": kernel, "strides": stride, "pads": padding * 2}


def _avg_pool(g: Graph, stage: AvgPool, x: str) -> str:
    if stage.divisor_override is not None:
        raise _missing(stage)
    return g.node("AveragePool", x, count_include_pad=1, **_windows(g, stage))


def _norm(g: Graph, stage: Norm, x: str) -> str:
    if stage.updates:
        raise Missing(f"an ONNX model keeps nothing between calls, and {stage} would")
    sees = stage.sees(g.problem.rank)
    if sees is Kind.AXES or isinstance(stage.over, tuple):
        raise _missing(stage)
    affine = g.vector(stage.weight, default=1.0), g.vector(stage.bias, default=0.0)
    if sees is Kind.POINTWISE:
        statistics = [g.vector(each) for each in (stage.running_mean, stage.running_var)]
    elif stage.over == "groups":
        groups, eps = stage.groups(g.shape), stage.eps
        return g.node("GroupNormalization", x, *affine, num_groups=groups, epsilon=eps)
    else:
        # BatchNormalization is given its statistics: those of this batch are worked out before it.
        axes, flat = g.integers(0, *range(2, 2 + g.problem.rank)), g.integers(-1)
        mean = g.node("ReduceMean", x, axes)
        centred = g.node("Sub", x, mean)
        variance = g.node("ReduceMean", g.node("Mul", centred, centred), axes)
        statistics = [g.node("Reshape", each, flat) for each in (mean, variance)]
    return g.node("BatchNormalization", x, *affine, *statistics, epsilon=stage.eps)


_REDUCES = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "logsumexp": "ReduceLogSumExp",
}


def _reduce(g: Graph, stage: Reduce, x: str) -> str:
    """The axes stay; the result takes its form at the end."""
    return g.node(_REDUCES[stage.name], x, g.integers(*stage.axes(g.problem.rank)))


def _softmax(g: Graph, stage: Softmax, x: str) -> str:
    operator, axes = "LogSoftmax" if stage.log else "Softmax", stage.axes(g.problem.rank)
    if len(axes) == 1:
        return g.node(operator, x, axis=axes[0])
    if axes[-1] - axes[0] + 1 != len(axes) or axes[-1] != g.problem.rank + 1:
        raise _missing(stage)
    flat = g.node("Reshape", x, g.integers(*g.shape.dims[: axes[0]], -1))
    return g.node("Reshape", g.node(operator, flat, axis=axes[0]), g.integers(*g.shape.dims))


def _cat(g: Graph, stage: Cat, x: str) -> str:
    skip = g.value(stage.skip)
    return g.node("Concat", *((skip, x) if stage.first else (x, skip)), axis=1)


_NODES = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "neg": "Neg",
    "abs": "Abs",
    "minimum": "Min",
    "maximum": "Max",
    "clamp": "Clip",
    "floor": "Floor",
    "where": "Where",
    "lt": "Less",
    "le": "LessOrEqual",
    "eq": "Equal",
    "both": "And",
    "either": "Or",
    "no": "Not",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    **dict.fromkeys(("rsqrt", "expm1", "log1p"), "written out below"),
}
"""The operator for each primitive."""
complete(_NODES, __name__)


def _map(g: Graph, stage: Map, x: str) -> str:
    given: dict[str, Any] = dict(zip(stage.function.parameters, stage.arguments, strict=True))

    def leaf(each: Expr) -> str:
        if isinstance(each, Constant):
            return g.number(each.value)
        assert isinstance(each, Name)
        return x if each.name == "x" else g.value(given[each.name])

    def apply(each: Call, parts: list[str]) -> str:
        if each.primitive == "rsqrt":
            return g.node("Reciprocal", g.node("Sqrt", *parts))
        if each.primitive == "expm1":
            return g.node("Sub", g.node("Exp", *parts), g.number(1))
        if each.primitive == "log1p":
            return g.node("Log", g.node("Add", *parts, g.number(1)))
        if each.primitive == "clamp" and stage.tensors:  # Clip takes numbers alone
            return g.node("Min", g.node("Max", *parts[:2]), parts[2])
        return g.node(_NODES[each.primitive], *parts)

    result: str = folded(stage.function.expr, leaf, apply)
    return result


EMITTERS: dict[type[Stage], Callable[[Graph, Any, str], str]] = {
    ConvTranspose: _convolution,
    Map: lambda g, s, x: _map(g, s, x),
    Reduce: _reduce,
    Softmax: _softmax,
    AvgPool: _avg_pool,
    MaxPool: lambda g, s, x: g.node("MaxPool", x, **_windows(g, s)),
    Norm: _norm,
    Cat: _cat,
    Flatten: lambda g, s, x: x,  # the result takes its form at the end
    Squeeze: lambda g, s, x: x,
}
