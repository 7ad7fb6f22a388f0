"""cuDNN's graph API on GPUs: the convolution and the pointwise stages after it as one graph.

A transposed convolution is the gradient of a convolution by its input (``conv_dgrad``). cuDNN
makes several plans for a graph, which differ in speed by much: all of them are timed, in both
layouts, and the fastest runs. What it takes to bring tensors into the plan's layout and back is
part of a call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transfuse import stages
from transfuse.bench.peers.base import Missing, Runner, Work, library
from transfuse.maths.expr import Call, Constant, Expr, Name, folded
from transfuse.maths.primitives import complete
from transfuse.problem import Problem
from transfuse.stages import ConvTranspose, Stage
from transfuse.stages.pointwise import Map

TYPES = {"fp16": "HALF", "bf16": "BFLOAT16", "tf32": "FLOAT"}
TRIALS = 3
"""Runs of each plan, of which the fastest counts."""
LARGEST_WORKSPACE = 2**31

Node = Any  # cudnn.tensor: a value of a graph
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CudnnGraph:
    name: str = "cuDNN graph"
    trains: bool = False

    def build(self, work: Work) -> Runner:
        refuse(work)
        cudnn = library("cudnn", "pip install 'transfuse[bench-cuda]'")
        timed = [(_seconds(call, work.x), call, note) for call, note in _plans(cudnn, work)]
        if not timed:
            raise Missing("cuDNN has no plan for this graph")
        _, call, note = min(timed, key=lambda each: each[0])
        return Runner(call, note=f"{note}, best of {len(timed)} plans")


def refuse(work: Work) -> None:
    """Raise Missing where a graph cannot say the chain."""
    problem = work.problem
    if not problem.device.startswith("cuda"):
        raise Missing("cuDNN is for GPUs")
    if work.precision.arithmetic not in TYPES:
        raise Missing(f"no cuDNN graph is written for {work.precision.name}")
    if not problem.in_torch:
        raise Missing("no cuDNN graph is written for an output with such padding")
    first, *rest = work.chain.stages
    for stage in (first, *rest):
        wanted = ConvTranspose if stage is first else Map
        if not isinstance(stage, wanted):
            raise Missing(f"a cuDNN graph convolves first, pointwise stages follow; not {stage}")


def _plans(cudnn: Any, work: Work) -> Iterator[tuple[Run, str]]:
    """Every plan that cuDNN has for a chain, in each layout, as a call with what it is."""
    layouts = [torch.contiguous_format, torch.channels_last]
    if work.problem.rank == 3:
        layouts[1] = torch.channels_last_3d
    for layout in layouts:
        try:
            graph = Graph(cudnn, work, layout)
        except cudnn.cudnnGraphNotSupportedError:
            continue
        for at in range(graph.count):
            call = graph.plan(at)
            if call is not None:
                yield call, "contiguous" if layout is layouts[0] else "channels_last"


def _seconds(call: Run, x: Tensor) -> float:
    start, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    call(x)
    taken: list[float] = []
    for _ in range(TRIALS):
        start.record()
        call(x)
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return min(taken)


class Graph:
    """A chain as a graph of cuDNN's, with its tensors in one layout."""

    def __init__(self, cudnn: Any, work: Work, layout: torch.memory_format) -> None:
        self.cudnn, self.work, self.layout = cudnn, work, layout
        self.kind = getattr(cudnn.data_type, TYPES[work.precision.arithmetic])
        self.handle = cudnn.create_handle()
        self.tensors: dict[Node, Tensor] = {}
        wide = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            io_data_type=self.kind,
            intermediate_data_type=wide,
            compute_data_type=wide,
            handle=self.handle,
        )
        problem = work.problem
        # Two axes at least: one of size 1 stands before a lone one.
        self.flat = problem.rank == 1
        like = self._laid(torch.empty(problem.output().dims, device="meta"))
        self.form = like.shape, like.stride()
        self.x = self._tensor(self._laid(work.x))
        value = self.x
        for stage in work.chain.stages:
            value = self._stage(stage, value)
        self.y = value.set_output(True).set_data_type(self.kind)
        self.y.set_dim(list(self.form[0])).set_stride(list(self.form[1]))
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.graph.deselect_workspace_greater_than(LARGEST_WORKSPACE)
        self.graph.check_support()
        self.count: int = self.graph.get_execution_plan_count()

    def plan(self, at: int) -> Run | None:
        """One plan as a call; none where cuDNN cannot make it after all."""
        try:
            self.graph.build_plan_at_index(at)
        except (self.cudnn.cudnnGraphNotSupportedError, RuntimeError):
            return None
        size = self.graph.get_workspace_size_plan_at_index(at)
        given = {node: tensor for node, tensor in self.tensors.items() if node is not self.x}
        dims, strides = self.form
        result = self.work.problem.output().dims
        own = torch.channels_last if self.work.problem.rank == 2 else torch.channels_last_3d
        back = own if self.work.problem.layout == "channels_last" else torch.contiguous_format

        def call(x: Tensor) -> Tensor:
            y = torch.empty_strided(dims, strides, dtype=x.dtype, device=x.device)
            space = torch.empty(size, dtype=torch.uint8, device=x.device)
            stream = torch.cuda.current_stream().cuda_stream
            self.cudnn.set_stream(handle=self.handle, stream=stream)
            tensors = {**given, self.x: self._laid(x), self.y: y}
            self.graph.execute_plan_at_index(tensors, space, at, self.handle)
            return y.view(result) if self.flat else y.contiguous(memory_format=back)

        return call

    def _laid(self, tensor: Tensor) -> Tensor:
        """A tensor of the convolution as this graph reads it."""
        tensor = tensor.unsqueeze(2) if self.flat else tensor
        return tensor.contiguous(memory_format=self.layout)

    def _tensor(self, tensor: Tensor) -> Node:
        node = self.graph.tensor(
            dim=list(tensor.shape), stride=list(tensor.stride()), data_type=tensor.dtype
        )
        self.tensors[node] = tensor
        return node

    def _operand(self, name: str) -> Node:
        """An operand as it meets the values; one value for each channel stands along them."""
        tensor = self.work.operands[name]
        axes = len(self.form[0])
        if tensor.dim() == 1:
            return self._tensor(tensor.reshape(1, -1, *[1] * (axes - 2)))
        return self._tensor(self._laid(tensor))

    def _number(self, value: float) -> Node:
        axes = len(self.form[0])
        return self._tensor(torch.full([1] * axes, value, device=self.work.x.device))

    def _stage(self, stage: Stage, value: Node) -> Node:
        if isinstance(stage, ConvTranspose):
            return self._convolution(stage, value)
        assert isinstance(stage, Map)
        return self._map(stage, value)

    def _convolution(self, stage: ConvTranspose, x: Node) -> Node:
        def axes(values: tuple[int, ...], lone: int) -> list[int]:
            return [lone, *values] if self.flat else list(values)

        problem: Problem = self.work.problem
        y = self.graph.conv_dgrad(
            loss=x,
            filter=self._tensor(self._laid(self.work.weight)),
            padding=axes(problem.padding, 0),
            stride=axes(problem.stride, 1),
            dilation=axes(problem.dilation, 1),
        )
        # The output of a gradient has any of several sizes, so it is told.
        y.set_dim(list(self.form[0])).set_stride(list(self.form[1]))
        if isinstance(stage.bias, str):
            y = self.graph.add(y, self._operand(stage.bias))
        return y

    def _map(self, stage: Map, x: Node) -> Node:
        given = dict(zip(stage.function.parameters, stage.arguments, strict=True))
        whole = _WHOLE.get(stage.function.expr)
        if whole is not None and not stage.tensors:
            return whole(self.graph, x, *given.values())

        def leaf(each: Expr) -> Node:
            if isinstance(each, Constant):
                return self._number(each.value)
            assert isinstance(each, Name)
            value = x if each.name == "x" else given[each.name]
            if isinstance(value, str):
                return self._operand(value)
            return self._number(value) if isinstance(value, int | float) else value

        def apply(each: Call, parts: list[Node]) -> Node:
            return self._apply(each.primitive, parts)

        return folded(stage.function.expr, leaf, apply)

    def _apply(self, primitive: str, parts: list[Node]) -> Node:
        g = self.graph
        if primitive == "clamp":
            return g.min(g.max(parts[0], parts[1]), parts[2])
        if primitive == "where":
            return g.binary_select(parts[1], parts[2], parts[0])
        if primitive == "expm1":
            return g.sub(g.exp(*parts), self._number(1.0))
        if primitive == "log1p":
            return g.log(g.add(*parts, self._number(1.0)))
        node = getattr(g, _NODES[primitive])(*parts)
        if primitive in _BOOLEAN:
            node.set_data_type(self.cudnn.data_type.BOOLEAN)
        return node


_BOOLEAN = ("lt", "le", "eq", "both", "either", "no")
_NODES = {
    **{name: name for name in ("add", "sub", "mul", "div", "neg", "abs", "floor", "sqrt", "rsqrt")},
    **{name: name for name in ("exp", "log", "sin", "cos", "tanh", "sigmoid", "erf")},
    "minimum": "min",
    "maximum": "max",
    "lt": "cmp_lt",
    "le": "cmp_le",
    "eq": "cmp_eq",
    "both": "logical_and",
    "either": "logical_or",
    "no": "logical_not",
    **dict.fromkeys(("clamp", "where", "expm1", "log1p"), "written out above"),
}
"""The method of a graph for each primitive."""
complete(_NODES, __name__)

_WHOLE: dict[Expr, Callable[..., Node]] = {
    stages.relu().function.expr: lambda g, x: g.relu(x),
    stages.relu6().function.expr: lambda g, x: g.relu(x, upper_clip=6.0),
    stages.leaky_relu().function.expr: lambda g, x, slope: g.leaky_relu(x, slope),
    stages.gelu().function.expr: lambda g, x: g.gelu(x),
    stages.gelu("tanh").function.expr: lambda g, x: g.gelu_approx_tanh(x),
    stages.silu().function.expr: lambda g, x: g.swish(x),
}
"""Functions for which cuDNN has a node of its own."""

PEERS = (CudnnGraph(),)
