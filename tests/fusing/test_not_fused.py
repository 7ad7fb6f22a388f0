"""What must not join a chain, and the reason that is given; all of it computes what it did."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import transfuse
from tests.fusing.alike import expect_alike, made
from tests.fusing.captured import close, fused, same
from transfuse.fusing.rewriting import fuse_graph

X, W = (2, 3, 4, 4), (3, 4, 2, 2)
"""An input and a weight, which give values of 2x4x8x8."""


def drawn(*sizes: int) -> Tensor:
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def up(x: Tensor, w: Tensor) -> Tensor:
    return F.conv_transpose2d(x, w, None, 2)


def used_by_another(x: Tensor, w: Tensor) -> Any:
    y = up(x, w)
    return F.relu(y), y.cumsum(1)


def returned_too(x: Tensor, w: Tensor) -> Any:
    y = up(x, w)
    return y, F.relu(y)


def squeeze_and_excite(x: Tensor, w: Tensor) -> Any:
    y = up(x, w)
    return y * torch.sigmoid(y.mean((2, 3), keepdim=True))


def dropped(x: Tensor, w: Tensor) -> Any:
    return F.dropout(up(x, w), 0.0 + 1.0, True)


def into_another(x: Tensor, w: Tensor) -> Any:
    return up(x, w).cumsum(2)


def over_samples(x: Tensor, w: Tensor) -> Any:
    return up(x, w).sum(0)


def over_all(x: Tensor, w: Tensor) -> Any:
    return up(x, w).mean()


def cat_along_space(x: Tensor, w: Tensor) -> Any:
    return torch.cat([up(x, w), torch.ones(2, 4, 1, 8, dtype=torch.float64)], 2)


def cat_of_three(x: Tensor, w: Tensor) -> Any:
    return torch.cat([up(x, w), x.repeat(1, 1, 2, 2), x.repeat(1, 1, 2, 2)], 1)


def written_where_it_is_seen(x: Tensor, w: Tensor) -> Any:
    y = up(x, w)
    z = F.relu(y, inplace=True)
    return y + z


def added_to_another(x: Tensor, w: Tensor) -> Any:
    skip = torch.zeros(2, 4, 8, 8, dtype=torch.float64)
    skip += up(x, w)
    return skip


def other_pool(x: Tensor, w: Tensor) -> Any:
    return F.max_pool1d(up(x, w).flatten(2), 2)


def odd_power(x: Tensor, w: Tensor) -> Any:
    return up(x, w).abs() ** 1.5


def indices(x: Tensor, w: Tensor) -> Any:
    return up(x, w).max(1)[1]


def other_type(x: Tensor, w: Tensor) -> Any:
    return up(x, w).softmax(1, dtype=torch.float32)


CASES: list[tuple[Callable[..., Any], tuple[str, ...], str]] = [
    (used_by_another, ("conv_transpose2d",), "chains that share a convolution's result are out of"),
    (returned_too, ("conv_transpose2d",), "used 2 times"),
    (squeeze_and_excite, ("conv_transpose2d",), "used 2 times"),
    (dropped, ("conv_transpose2d",), "dropout changes its values"),
    (into_another, ("conv_transpose2d",), "cumsum is not of the vocabulary"),
    (over_samples, ("conv_transpose2d",), "samples are never mixed"),
    (over_all, ("conv_transpose2d",), "samples would be mixed"),
    (cat_along_space, ("conv_transpose2d",), "along axis 2, not along the channels"),
    (cat_of_three, ("conv_transpose2d",), "cat is of 3 tensors"),
    (written_where_it_is_seen, ("conv_transpose2d",), "writes to a tensor that is used elsewhere"),
    (added_to_another, ("conv_transpose2d",), "writes to a tensor that is used elsewhere"),
    (other_pool, ("conv_transpose2d", "flatten"), "max_pool1d is not for 2 spatial axes"),
    (odd_power, ("conv_transpose2d", "abs"), "only whole powers"),
    (indices, ("conv_transpose2d",), "the indices of max are used"),
    (other_type, ("conv_transpose2d",), "dtype=torch.float32"),
]


@pytest.mark.parametrize(
    ("function", "operations", "why"), CASES, ids=[c[0].__name__ for c in CASES]
)
def test_the_chain_ends_with_the_reason(
    function: Callable[..., Any], operations: tuple[str, ...], why: str
) -> None:
    before, after, (site,) = fused(function)
    assert site.operations == operations
    assert why in site.why
    if function is not dropped and function is not indices:
        same(before, after, [drawn(*X), drawn(*W)])


class Written(nn.Module):
    """The input is written to behind the convolution, and before the chain's end."""

    def forward(self, x: Tensor, w: Tensor) -> Any:
        x = x * 1.0
        y = up(x, w)
        x.mul_(2)
        return F.relu(y), x


def test_nothing_moves_across_a_write_that_it_would_see() -> None:
    before, after, (site,) = fused(Written())
    assert site.operations == ("conv_transpose2d",)
    assert "writes in between to what conv_transpose2d reads" in site.why
    given = [drawn(*X), drawn(*W)]
    close(before(*given), after(*given))


class Reread(nn.Module):
    """The buffers of a norm are read behind it, and before the chain's end."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4).double()

    def forward(self, x: Tensor, w: Tensor) -> Any:
        mean, var = self.norm.running_mean, self.norm.running_var
        y = F.batch_norm(up(x, w), mean, var, None, None, True)
        seen = mean * 1.0
        return F.relu(y) + 1, seen


def test_running_statistics_move_before_they_are_read() -> None:
    before, after, (site,) = fused(Reread())
    assert site.operations == ("conv_transpose2d", "batch_norm")
    assert "uses in between what batch_norm writes to" in site.why
    same(before, after, [drawn(*X), drawn(*W)])


class Shared(nn.Module):
    """A value beside the chain is a view of what is written to."""

    def forward(self, x: Tensor, w: Tensor, skip: Tensor) -> Any:
        whole = skip * 1.0
        part = whole.view(2, 4, 8, 8)
        y = up(x, w) * part
        whole.add_(1)
        return y + 1


def test_memory_that_views_share_is_one() -> None:
    before, after, (site,) = fused(Shared())
    assert site.operations == ("conv_transpose2d",)
    assert "add_ writes later to what it reads" in site.why
    given = [drawn(*X), drawn(*W), drawn(2, 4, 8, 8)]
    close(before(*given), after(*given))


class Mine(nn.Conv2d):
    """A module of somebody's own may do anything to what it is given."""


class Beside(nn.Module):
    """A module left whole, on the convolution's own input, stands before the chain's end."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        whole = Mine if kind == "mine" else nn.Conv2d
        self.side = nn.Sequential(whole(3, 4, 1), nn.ReLU(inplace=kind == "in place")).double()

    def forward(self, x: Tensor, w: Tensor) -> Any:
        y = up(x, w)
        return self.side(x).sum() + F.relu(y)


@pytest.mark.parametrize(("kind", "count"), [("torch's", 3), ("in place", 1), ("mine", 1)], ids=str)
def test_a_module_left_whole_may_write_to_what_it_is_given(kind: str, count: int) -> None:
    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    model = Beside(kind)
    tracer = Tracer()
    before = fx.GraphModule(model, tracer.trace(model))
    after = fx.GraphModule(model, tracer.trace(model))
    (site,) = fuse_graph(after.graph, after)
    after.recompile()
    assert len(site.operations) == count
    assert count > 1 or "writes in between" in site.why
    same(before, after, [drawn(*X), drawn(*W)])


def test_autocast_is_a_border() -> None:
    """What stands within is not moved out."""
    graph = fx.Graph()
    x, w = map(graph.placeholder, ("x", "w"))
    y = graph.call_function(F.conv_transpose2d, (x, w, None, 2))
    enter = graph.call_function(
        torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False)
    )
    z = graph.call_function(F.relu, (y,))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.output(z)
    (site,) = fuse_graph(graph, None)
    assert site.operations == ("conv_transpose2d",)
    assert "stands in between" in site.why


def test_an_input_written_in_place_that_is_not_the_chains_own_stays_so() -> None:
    """``relu_(x)`` on an argument is seen by the caller."""

    def seen(x: Tensor, w: Tensor) -> Tensor:
        return up(x.relu_(), w)

    before, after, (site,) = fused(seen)
    assert site.operations == ("conv_transpose2d",)
    x, y = drawn(*X), drawn(*X)
    close(before(x, drawn(*W)), after(y, drawn(*W)))
    close(x, y)
    assert x.min() == 0

    def unseen(x: Tensor, w: Tensor) -> Tensor:
        return up((x / 3).relu_(), w)

    before, after, (site,) = fused(unseen)
    assert site.operations == ("div", "relu_", "conv_transpose2d")
    same(before, after, [drawn(*X), drawn(*W)])


def test_what_a_convolution_left_whole_gives_is_its_own_memory() -> None:
    class Model(nn.Module):
        def __init__(self, before: nn.Module) -> None:
            super().__init__()
            self.before = before

        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return up(self.before(x).relu_(), w)

    for module, taken in ((nn.Conv2d(3, 3, 1).double(), 2), (nn.Identity(), 1)):
        _, _, (site,) = fused(Model(module))
        assert len(site.operations) == taken, module


def test_known_sizes_must_fit() -> None:
    """An operand that makes the values larger joins only where its size is not known."""

    def grown(x: Tensor, w: Tensor, term: Tensor) -> Tensor:
        return F.relu(F.conv_transpose2d(x, w, None, 2) + term)

    given = [drawn(*X), drawn(3, 1, 2, 2), drawn(1, 5, 1, 1)]
    before, after, (site,) = fused(grown, given)
    assert site.operations == ("conv_transpose2d",)
    assert "broadcast" in site.why or "one value for each" in site.why
    same(before, after, given)


def test_no_transposed_convolution_no_site() -> None:
    graph = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    text = str(graph.graph)
    assert fuse_graph(graph.graph, graph) == []
    assert str(graph.graph) == text


def test_a_number_for_a_tensor_is_left() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(F.conv_transpose2d, (x, operator.add)))  # type: ignore[arg-type]
    (site,) = fuse_graph(graph, None)
    assert site.chain is None
    assert "not values of the graph" in site.why


class WrittenLater(nn.Module):
    """Nothing of a sum is kept for gradients, so that its terms may be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        skip = skip + 0
        y = F.dropout(self.up(x), training=False).relu_() + skip
        skip.mul_(2)
        return y.relu()


def test_what_is_written_later_is_not_read_again_for_gradients() -> None:
    fused, twin = transfuse.fuse(made(WrittenLater)), made(WrittenLater)
    expect_alike(fused, twin, drawn(2, 3, 4, 4), drawn(2, 4, 8, 8))
    (row,) = fused.explain().rows
    assert row.chain == "conv_transpose2d(+ bias) -> relu"
    assert row.why == "add: mul_ writes later to what it reads"


class Normed(nn.Module):
    """One norm for all: before a convolution, or behind two."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.up = nn.ConvTranspose1d(3, 3, 2, stride=2)
        self.again = nn.ConvTranspose1d(3, 3, 2, stride=2)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.up(self.norm(x) if self.before else x)))
        return y if self.before else y + torch.relu(self.norm(self.again(x)))


@pytest.mark.parametrize("before", [False, True])
def test_norms_that_several_share(before: bool) -> None:
    """Autograd refuses what an unfused norm has kept, if a chain moves it later."""
    make = partial(Normed, before)
    fused, twin = transfuse.fuse(made(make)), made(make)
    for training in (True, False):
        for each in (fused, twin):
            each.train(training)
        for _ in range(2):
            expect_alike(fused, twin, torch.randn(2, 3, 4, dtype=torch.float64))
    fused.train()
    rows = fused.explain().rows
    assert all(row.fused for row in rows)
    assert ["batch_norm" in row.operations for row in rows] == ([False] if before else [True] * 2)
