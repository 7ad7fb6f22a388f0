"""Graphs drawn by seed: chains with residuals, values used twice, in-place operations and cats.

Each is compared with itself before it was rewritten: values, gradients, running statistics.
"""

import operator
import random
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from tests.fusing.captured import Examples, same
from transfuse.fusing.rewriting import Site, fuse_graph

N, C = 2, 4


class Drawing:
    """A graph in the making: one value after another, of the sizes that are kept beside it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.rank = self.random.choice((1, 2, 2, 3))
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.inputs: list[Tensor] = []
        self.results: list[fx.Node] = []
        self.size = self.random.choice((3, 4))
        self.channels = C
        self.value = self.given(N, C, *(self.size,) * self.rank)

    def tensor(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, dtype=torch.float64, generator=self.generator)

    def given(self, *sizes: int) -> fx.Node:
        self.inputs.append(self.tensor(*sizes))
        return self.graph.placeholder(f"input{len(self.inputs)}")

    def parameter(self, *sizes: int) -> fx.Node:
        name = f"parameter{len([*self.root.parameters()])}"
        self.root.register_parameter(name, nn.Parameter(self.tensor(*sizes)))
        return self.graph.get_attr(name)

    def buffer(self, tensor: Tensor) -> fx.Node:
        name = f"buffer{len([*self.root.buffers()])}"
        self.root.register_buffer(name, tensor)
        return self.graph.get_attr(name)

    @property
    def dims(self) -> tuple[int, ...]:
        return N, self.channels, *(self.size,) * self.rank

    def step(self) -> None:
        self.random.choice(STEPS)(self)

    def convolve(self) -> None:
        out = self.random.choice((2, 4))
        weight = self.parameter(self.channels, out, *(2,) * self.rank)
        bias = self.random.choice((None, self.parameter(out)))
        function = getattr(F, f"conv_transpose{self.rank}d")
        self.value = self.graph.call_function(function, (self.value, weight, bias, 2))
        self.channels, self.size = out, 2 * self.size

    def fresh(self) -> fx.Node:
        """The value in memory that no derivative needs, so that it can be written to."""
        return self.graph.call_function(operator.mul, (self.value, 1.5))

    def unary(self) -> None:
        name = self.random.choice(("relu", "sigmoid", "tanh", "sin", "exp", "neg", "abs", "square"))
        made = self.random.choice(
            (
                lambda: self.graph.call_method(name, (self.value,)),
                lambda: self.graph.call_function(getattr(torch, name), (self.value,)),
                lambda: self.graph.call_method(f"{name}_", (self.fresh(),)),
            )
        )
        self.value = self.graph.call_method("tanh", (made(),))  # so that values stay small

    def activation(self) -> None:
        function = self.random.choice(
            (F.leaky_relu, F.gelu, F.silu, F.elu, F.mish, F.hardtanh, F.softplus, F.tanhshrink)
        )
        self.value = self.graph.call_function(function, (self.value,))

    def beside_number(self) -> None:
        function = self.random.choice((operator.add, operator.mul, operator.sub, operator.iadd))
        pair = [self.fresh(), 0.5]
        if function is not operator.iadd:
            self.random.shuffle(pair)
        self.value = self.graph.call_function(function, tuple(pair))

    def beside_tensor(self) -> None:
        full = self.dims
        sizes = self.random.choice(
            (
                full,
                full[1:],
                (self.channels, *(1,) * self.rank),
                (full[-1],),
                (1,),
                (),
                (N, 1, *full[2:]),
            )
        )
        other = self.parameter(*sizes) if self.random.random() < 0.5 else self.given(*sizes)
        function = self.random.choice((torch.add, operator.mul, torch.maximum, operator.isub))
        self.value = self.graph.call_function(function, (self.fresh(), other))

    def twice(self) -> None:
        gate = self.graph.call_function(torch.sigmoid, (self.value,))
        if self.random.random() < 0.5:
            gate = self.graph.call_function(operator.mul, (gate, self.parameter()))
        self.value = self.graph.call_function(operator.mul, (self.value, gate))

    def snake(self) -> None:
        a = self.parameter(self.channels, *(1,) * self.rank)
        wave = self.graph.call_function(
            torch.sin, (self.graph.call_function(operator.mul, (self.value, a)),)
        )
        self.value = self.graph.call_function(
            operator.add, (self.value, self.graph.call_method("pow", (wave, 2)))
        )

    def chosen(self) -> None:
        condition = self.graph.call_function(operator.gt, (self.value, 0.1))
        low = self.graph.call_function(operator.mul, (self.value, 0.3))
        self.value = self.graph.call_function(torch.where, (condition, self.value, low))

    def cat(self) -> None:
        skip = self.given(N, 2, *(self.size,) * self.rank)
        pair = [self.value, skip]
        self.random.shuffle(pair)
        self.value = self.graph.call_function(torch.cat, (pair, 1))
        self.channels += 2

    def norm(self) -> None:
        weight, bias = self.parameter(self.channels), self.parameter(self.channels)
        kind = self.random.choice(("batch", "running", "group", "instance"))
        if kind == "group":
            arguments = (self.value, 2, weight, bias)
            self.value = self.graph.call_function(F.group_norm, arguments)
            return
        if kind == "instance":
            self.value = self.graph.call_function(F.instance_norm, (self.value, None, None, weight))
            return
        mean = self.buffer(self.tensor(self.channels))
        var = self.buffer(self.tensor(self.channels).abs() + 0.5)
        arguments = (self.value, mean, var, weight, bias, kind == "batch")
        self.value = self.graph.call_function(F.batch_norm, arguments)

    def pool(self) -> None:
        if self.size < 4:  # torch has no norm of a single position
            return
        kind = self.random.choice(("max", "avg"))
        self.value = self.graph.call_function(
            getattr(F, f"{kind}_pool{self.rank}d"), (self.value, 2)
        )
        self.size //= 2

    def softmax(self) -> None:
        self.value = self.graph.call_function(F.softmax, (self.value, 1))

    def nothing(self) -> None:
        self.value = self.graph.call_function(F.dropout, (self.value, 0.5, False))

    def returned_too(self) -> None:
        """What stands here is seen from outside: nothing may take it in whole."""
        self.value = self.graph.call_function(torch.tanh, (self.value,))
        self.results.append(self.value)
        self.value = self.graph.call_function(torch.cos, (self.value,))

    def unknown(self) -> None:
        """An operation that is not of the vocabulary, on a value that is used twice."""
        least = self.graph.call_function(torch.cumsum, (self.value, 1))
        self.value = self.graph.call_function(operator.add, (self.value, least))

    def done(self) -> fx.GraphModule:
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        for node in reversed(placeholders):
            self.graph._root.append(node)
        self.graph.output((self.value, *self.results))
        return fx.GraphModule(self.root, self.graph)


STEPS: tuple[Callable[[Drawing], None], ...] = (
    Drawing.unary, Drawing.unary, Drawing.activation, Drawing.activation, Drawing.beside_number,
    Drawing.beside_tensor, Drawing.beside_tensor, Drawing.twice, Drawing.snake, Drawing.chosen,
    Drawing.cat, Drawing.norm, Drawing.pool, Drawing.softmax, Drawing.nothing,
    Drawing.returned_too, Drawing.unknown,
)  # fmt: skip


def drawn(seed: int) -> tuple[fx.GraphModule, list[Tensor]]:
    drawing = Drawing(seed)
    for _ in range(drawing.random.choice((1, 1, 2))):
        for _ in range(drawing.random.randrange(3)):
            drawing.step()
        drawing.convolve()
        for _ in range(drawing.random.randrange(7)):
            drawing.step()
    return drawing.done(), drawing.inputs


def rewritten(module: fx.GraphModule, inputs: list[Tensor], known: bool) -> list[Site]:
    if known:
        Examples(deepcopy(module)).run(*deepcopy(inputs))
        trial = deepcopy(module)
        Examples(trial).run(*deepcopy(inputs))
        for node, tried in zip(module.graph.nodes, trial.graph.nodes, strict=True):
            node.meta |= tried.meta
    sites = fuse_graph(module.graph, module)
    module.recompile()
    return sites


def compared(seed: int, known: bool) -> list[Site]:
    before, inputs = drawn(seed)
    after = deepcopy(before)
    sites = rewritten(after, inputs, known)
    assert all(site.chain is not None for site in sites), sites
    same(before, after, inputs)
    return sites


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_graph_is_the_same_fused(seed: int) -> None:
    compared(seed, known=bool(seed % 2))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40, 400))
def test_many_drawn_graphs_are_the_same_fused(seed: int) -> None:
    compared(seed, known=bool(seed % 2))


def test_drawn_graphs_fuse_much() -> None:
    """Most operations that follow a convolution directly are of the vocabulary, and join it."""
    taken = [len(site.operations) for seed in range(20) for site in compared(seed, known=False)]
    assert sum(taken) / len(taken) > 3
