"""The peer on cuDNN's graph API: which chains it takes, and that its graphs say the same maths.

In place of cuDNN stands a library that works its graphs out in torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse import fills, maths, stages
from transfuse.accuracy import Oracle, longest_sum
from transfuse.bench.peers import Missing, Work, cudnn_graph
from transfuse.bench.precision import PRECISIONS
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, pointwise


class Node:
    """A value of a graph: how it is worked out, and the form it was told."""

    def __init__(self, made: Callable[[], Tensor] | None = None) -> None:
        self.made, self.dim, self.stride = made, None, None

    def set_dim(self, dim: list[int]) -> "Node":
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> "Node":
        self.stride = stride
        return self

    def set_output(self, is_output: bool) -> "Node":
        return self

    def set_data_type(self, kind: object) -> "Node":
        return self


BINARY = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    "min": torch.minimum,
    "max": torch.maximum,
    "cmp_lt": torch.lt,
    "cmp_le": torch.le,
    "cmp_eq": torch.eq,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
}
UNARY = {
    **{name: getattr(torch, name) for name in ("neg", "abs", "floor", "sqrt", "rsqrt", "exp")},
    **{name: getattr(torch, name) for name in ("log", "sin", "cos", "tanh", "sigmoid", "erf")},
    "logical_not": torch.logical_not,
    "gelu": torch.nn.functional.gelu,
    "gelu_approx_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "swish": torch.nn.functional.silu,
}
GRADIENT = {2: torch.nn.grad.conv2d_input, 3: torch.nn.grad.conv3d_input}


class Pygraph:
    def __init__(self, **kinds: object) -> None:
        self.given: dict[Node, Tensor] = {}
        self.last = Node()

    def tensor(self, dim: list[int], stride: list[int], data_type: torch.dtype) -> Node:
        node = Node()
        node.made = lambda: self.read(node)
        return node.set_dim(dim).set_stride(stride)

    def read(self, node: Node) -> Tensor:
        found = self.given[node]
        assert list(found.shape) == node.dim
        assert list(found.stride()) == node.stride
        return found.float()

    def _made(self, made: Callable[[], Tensor]) -> Node:
        self.last = Node(made)
        return self.last

    def __getattr__(self, name: str) -> Callable[..., Node]:
        function = {**BINARY, **UNARY}[name]
        return lambda *parts: self._made(lambda: function(*(part.made() for part in parts)))

    def binary_select(self, input0: Node, input1: Node, mask: Node) -> Node:
        return self._made(lambda: torch.where(mask.made(), input0.made(), input1.made()))

    def relu(self, x: Node, upper_clip: float = float("inf")) -> Node:
        return self._made(lambda: x.made().clamp(0, upper_clip))

    def leaky_relu(self, x: Node, negative_slope: float) -> Node:
        return self._made(lambda: torch.nn.functional.leaky_relu(x.made(), negative_slope))

    def conv_dgrad(self, loss: Node, filter: Node, **options: list[int]) -> Node:
        def made() -> Tensor:
            weight, x = filter.made(), loss.made()
            groups = node.dim[1] // weight.shape[1]
            convolve = GRADIENT[x.dim() - 2]
            return convolve(node.dim, weight, x, groups=groups, **options)

        node = self._made(made)
        return node

    def validate(self) -> None: ...

    build_operation_graph = check_support = validate

    def create_execution_plans(self, modes: list[str]) -> None: ...

    def deselect_workspace_greater_than(self, size: int) -> None: ...

    def get_execution_plan_count(self) -> int:
        return 3

    def build_plan_at_index(self, at: int) -> None:
        if at == 1:
            raise Cudnn.cudnnGraphNotSupportedError

    def get_workspace_size_plan_at_index(self, at: int) -> int:
        return 16

    def execute_plan_at_index(
        self, tensors: dict[Node, Tensor], space: Tensor, at: int, handle: int
    ) -> None:
        self.given = tensors
        assert space.numel() == 16
        out = tensors[self.last]
        assert list(out.shape) == self.last.dim
        assert list(out.stride()) == self.last.stride
        out.copy_(self.last.made())


class Cudnn:
    """The part of the library that the peer asks for."""

    class cudnnGraphNotSupportedError(RuntimeError): ...

    class data_type:
        FLOAT = HALF = BFLOAT16 = BOOLEAN = "a type"

    class heur_mode:
        A = FALLBACK = "a mode"

    pygraph = Pygraph

    @staticmethod
    def create_handle() -> int:
        return 7

    @staticmethod
    def set_stream(handle: int, stream: int) -> None:
        assert (handle, stream) == (7, 5)


@dataclass(frozen=True)
class Stream:
    cuda_stream: int = 5


chosen = pointwise(
    lambda x, low: maths.where(maths.either(x < low, maths.no(x <= 0.5)), x * 2, maths.cos(x))
)
CHAINS: dict[str, tuple[Any, ...]] = {
    "alone": (),
    "relu": (stages.relu(), stages.relu6()),
    "whole nodes": (stages.leaky_relu(0.1), stages.gelu(), stages.gelu("tanh"), stages.silu()),
    "tanh": (stages.tanh(), stages.sigmoid()),
    "tensors": (stages.scale("factor"), stages.add("skip")),
    "written out": (stages.elu(0.5), stages.softplus(), stages.clamp(-1, 0.5), stages.hardswish()),
    "conditions": (chosen(-0.2), stages.mish()),
}
LINES = [
    "n2 ci4 co6 i5x6 k3 s2 p1 op1 g2",
    "n2 ci4 co6 i5x6 k3x2 s2x1 d2 channels_last",
    "n2 ci3 co4 i9 k4 s3 p1",
    "n1 ci2 co3 i3x4x2 k2 s2 channels_last",
]


def work_of(line: str, then: tuple[Any, ...] = (), precision: str = "tf32") -> Work:
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(problem.rank, bias="bias"), *then)
    dims = problem.output().dims
    chain = chain.fitted({"bias": (dims[1],), "factor": (dims[1],), "skip": dims})
    tensors = fills.real(chain, problem, 0)
    return Work(chain, problem, PRECISIONS[precision], *tensors)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("then", CHAINS.values(), ids=CHAINS)
def test_every_plan_gives_the_chain(line, then, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    work = work_of(line, then)
    oracle = Oracle(
        work.chain, work.problem, work.x, work.weight, work.operands,
        2.0**-23, longest_sum(work.chain, work.problem),
    )  # fmt: skip
    plans = list(cudnn_graph._plans(Cudnn, work))
    assert [note for _, note in plans] == ["contiguous"] * 2 + ["channels_last"] * 2
    for call, _ in plans:
        y = call(work.x)
        assert oracle.judge(y).fault == ""
        if work.problem.rank == 2:
            last = work.problem.layout == "channels_last"
            assert y.is_contiguous(memory_format=torch.channels_last) == last


@pytest.mark.parametrize(
    ("line", "then", "precision", "reason"),
    [
        (LINES[0], (), "tf32", "cuDNN is for GPUs"),
        (LINES[0] + " cuda", (), "fp32", "no cuDNN graph is written for fp32"),
        (
            LINES[0] + " cuda",
            (stages.relu(), stages.max_pool(2)),
            "fp16",
            "stages follow; not max_p",
        ),
        ("n1 ci2 co3 i5 k3 p1 op-1 cuda", (), "fp16", "an output with such padding"),
    ],
)
def test_what_a_graph_cannot_say_is_refused(line, then, precision, reason) -> None:
    device = "cuda" if line.endswith("cuda") else "cpu"
    work = work_of(line.removesuffix("cuda"), then, precision)
    with pytest.raises(Missing, match=reason):
        cudnn_graph.refuse(replace(work, problem=replace(work.problem, device=device)))


def test_a_stage_before_the_convolution_is_refused() -> None:
    work = work_of(LINES[0], precision="fp16")
    chain = Chain(stages.relu(), *work.chain.stages)
    work = replace(work, chain=chain, problem=replace(work.problem, device="cuda"))
    with pytest.raises(Missing, match="a cuDNN graph convolves first"):
        cudnn_graph.refuse(work)


def test_the_fastest_plan_runs(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(cudnn_graph, "library", lambda *_: Cudnn)
    monkeypatch.setattr(cudnn_graph, "refuse", lambda work: None)
    seconds = iter((3.0, 1.0, 2.0, 4.0))
    monkeypatch.setattr(cudnn_graph, "_seconds", lambda call, x: next(seconds))
    work = work_of(LINES[0])
    runner = cudnn_graph.CudnnGraph().build(work)
    assert runner.note == "contiguous, best of 4 plans"
    monkeypatch.setattr(Cudnn, "pygraph", lambda **_: _refuses())
    with pytest.raises(Missing, match="cuDNN has no plan for this graph"):
        cudnn_graph.CudnnGraph().build(work)


def _refuses() -> None:
    raise Cudnn.cudnnGraphNotSupportedError
