"""A chain as an ONNX model, the form in which inference libraries take it.

``EMITTERS`` has one entry for each type of stage: the nodes it becomes. What ONNX has no operator
for (batch norm with the statistics of this batch) is spelled out in the operators it has.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from transfuse.bench.peers.base import Missing, library
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.stages import ConvTranspose, Number, Operand, Stage
from transfuse.stages.channel import ChannelSoftmax, ChannelSum
from transfuse.stages.pointwise import Add, Clamp, Scale, Sigmoid, Tanh
from transfuse.stages.whole import BatchNorm, GroupNorm, SpaceSoftmax
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
    for stage, graph.shape in zip(chain.stages, shapes, strict=False):
        if type(stage) not in EMITTERS:
            raise Missing(f"no ONNX form of stage {stage} is written")
        value = EMITTERS[type(stage)](graph, stage, value)
    graph.node("Identity", value, to=OUTPUT)
    describe = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        graph.nodes,
        "chain",
        [describe(INPUT, kind, shapes[0].dims)],
        [describe(OUTPUT, kind, shapes[-1].dims)],
        graph.constants,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=FORMAT)


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
        self.nodes.append(make(operator, inputs, [output], **attributes))
        return output

    def constant(self, tensor: Tensor) -> str:
        """One more constant, from its bytes: NumPy has no bfloat16."""
        name = f"constant_{len(self.constants)}"
        types = {ELEMENTS[each].dtype: kind for each, kind in TYPES.items()} | {torch.int64: "INT64"}
        kind = getattr(self._onnx.TensorProto, types[tensor.dtype])
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        make = self._onnx.helper.make_tensor
        self.constants.append(make(name, kind, tuple(tensor.shape), raw, raw=True))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def number(self, value: Number) -> str:
        return self.constant(torch.tensor(float(value), dtype=self.weight.dtype))

    def vector(self, operand: Operand) -> str:
        """A per-channel operand as ``(C,)``."""
        return self.constant(self._operand(operand).flatten())

    def value(self, operand: Number | Operand) -> str:
        """A number, or a per-channel operand as ``(1, C, 1, …)``."""
        if isinstance(operand, int | float):
            return self.number(operand)
        ones = [1] * len(self.shape.spatial)
        return self.constant(self._operand(operand).reshape(1, -1, *ones))

    def _operand(self, operand: Operand) -> Tensor:
        assert isinstance(operand, str), "a bound chain names its tensors"
        return self._operands[operand]


def _convolution(g: Graph, stage: ConvTranspose, x: str) -> str:
    p = g.problem
    weight = g.weight if stage.weight_scale == 1 else g.weight * stage.weight_scale
    bias = [] if stage.bias is None else [g.vector(stage.bias)]
    options = {"strides": p.stride, "pads": p.padding * 2, "output_padding": p.output_padding}
    options |= {"dilations": p.dilation, "kernel_shape": p.kernel}
    return g.node("ConvTranspose", x, g.constant(weight), *bias, group=p.groups, **options)


def _windows(g: Graph, stage: Window) -> dict[str, tuple[int, ...]]:
    kernel, stride, padding = zip(*stage.windows(g.problem.rank), strict=True)
    return {"kernel_shape": kernel, "strides": stride, "pads": padding * 2}


def _avg_pool(g: Graph, stage: AvgPool, x: str) -> str:
    y = g.node("AveragePool", x, count_include_pad=1, **_windows(g, stage))
    return y if stage.divide else g.node("Mul", y, g.number(stage.cells(g.problem.rank)))


def _clamp(g: Graph, stage: Clamp, x: str) -> str:
    # low > high gives high everywhere; OpenVINO refuses such bounds, so they become equal ones.
    low, high = float(stage.low), float(stage.high)
    return g.node("Clip", x, g.number(min(low, high)), g.number(high))


def _batch_norm(g: Graph, stage: BatchNorm, x: str) -> str:
    # BatchNormalization itself takes the statistics as inputs, except in training libraries.
    axes = g.integers(0, *range(2, 2 + g.problem.rank))
    centred = g.node("Sub", x, g.node("ReduceMean", x, axes))
    variance = g.node("ReduceMean", g.node("Mul", centred, centred), axes)
    deviation = g.node("Sqrt", g.node("Add", variance, g.number(stage.eps)))
    return _affine(g, stage, g.node("Div", centred, deviation))


def _group_norm(g: Graph, stage: GroupNorm, x: str) -> str:
    n, c, groups = g.shape.n, g.shape.c, int(stage.num_groups)
    flat = g.node("Reshape", x, g.integers(n, groups, -1))
    one, zero = (g.constant(torch.full((groups,), v, dtype=g.weight.dtype)) for v in (1.0, 0.0))
    y = g.node("InstanceNormalization", flat, one, zero, epsilon=stage.eps)
    return _affine(g, stage, g.node("Reshape", y, g.integers(*g.shape.dims)))


def _affine(g: Graph, stage: BatchNorm | GroupNorm, x: str) -> str:
    if stage.weight is not None:
        x = g.node("Mul", x, g.value(stage.weight))
    return x if stage.bias is None else g.node("Add", x, g.value(stage.bias))


def _space_softmax(g: Graph, stage: SpaceSoftmax, x: str) -> str:
    flat = g.node("Reshape", x, g.integers(g.shape.n, g.shape.c, -1))
    y = g.node("Softmax", flat, axis=2)
    return g.node("Reshape", y, g.integers(*g.shape.dims))


EMITTERS: dict[type[Stage], Callable[[Graph, Any, str], str]] = {
    ConvTranspose: _convolution,
    Add: lambda g, stage, x: g.node("Add", x, g.value(stage.term)),
    Scale: lambda g, stage, x: g.node("Mul", x, g.value(stage.factor)),
    Clamp: _clamp,
    Sigmoid: lambda g, stage, x: g.node("Sigmoid", x),
    Tanh: lambda g, stage, x: g.node("Tanh", x),
    ChannelSum: lambda g, stage, x: g.node("ReduceSum", x, g.integers(1)),
    ChannelSoftmax: lambda g, stage, x: g.node("Softmax", x, axis=1),
    AvgPool: _avg_pool,
    MaxPool: lambda g, stage, x: g.node("MaxPool", x, **_windows(g, stage)),
    BatchNorm: _batch_norm,
    GroupNorm: _group_norm,
    SpaceSoftmax: _space_softmax,
}
