"""What a rewritten graph calls: other tensors than the match saw, autocast, numbers of a call."""

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fusing.captured import close, fused, never_unfused, same, traced
from transfuse.fusing.rewriting import fuse_graph


def drawn(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, dtype=dtype, generator=torch.Generator().manual_seed(3))


def up_and_add(x: Tensor, w: Tensor, skip: Any) -> Tensor:
    return F.relu(F.conv_transpose2d(x, w, None, 2) + skip)


def test_an_unbatched_input_runs_the_original_operations_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, after, _ = fused(up_and_add)
    x, w, skip = drawn(3, 4, 4), drawn(3, 4, 2, 2), drawn(4, 8, 8)
    with caplog.at_level(logging.WARNING, "transfuse"):
        same(before, after, [x, w, skip])
        same(before, after, [x, w, skip])
    assert [each.getMessage() for each in caplog.records] == [
        "conv_transpose2d -> add(add.other) -> relu runs unfused, as torch operations: "
        "the input has 3 axes"
    ]


@pytest.mark.parametrize(
    "skip",
    [
        drawn(2, 4, 8, 8),
        drawn(4, 1, 1),
        drawn(8),  # along the last axis, as torch has it: not one value per channel
        drawn(8, 1),
        drawn(1),
        drawn(),
        drawn().float(),
        torch.tensor(3),
        torch.arange(8),
        drawn(2, 4, 8, 8) > 0,
        2,
        0.5,
    ],
    ids=lambda each: f"{each.dtype} {[*each.shape]}" if isinstance(each, Tensor) else repr(each),
)
def test_operands_broadcast_as_torchs_do(skip: Any) -> None:
    before, after, sites = fused(up_and_add)
    never_unfused(after, *sites)
    x, w = drawn(2, 3, 4, 4), drawn(3, 4, 2, 2)
    close(before(x, w, skip), after(x, w, skip))


@pytest.mark.parametrize(
    "skip",
    [
        drawn(3, 2, 4, 8, 8),
        drawn(1, 1, 1, 1, 1),
        drawn(2, 4, 8, 8).float(),
        drawn(2, 4, 8, 8).to(torch.complex128),
    ],
    ids=("more axes", "one more axis", "float32", "complex"),
)
def test_operands_that_make_the_values_others_run_the_original_operations(skip: Tensor) -> None:
    def scaled(x: Tensor, w: Tensor, skip: Any) -> Tensor:
        return F.conv_transpose2d(x, w, None, 2) * skip

    before, after, _ = fused(scaled)
    x, w = drawn(2, 3, 4, 4), drawn(3, 4, 2, 2)
    expected, found = before(x, w, skip), after(x, w, skip)
    assert expected.dtype == found.dtype
    close(expected, found)


def test_values_of_one_channel_that_an_operand_makes_more() -> None:
    before, after, _ = fused(up_and_add)
    same(before, after, [drawn(2, 3, 4, 4), drawn(3, 1, 2, 2), drawn(1, 5, 1, 1)])


def test_what_is_wrong_is_said_in_torchs_words() -> None:
    before, after, _ = fused(up_and_add)
    given = [drawn(2, 5, 4, 4), drawn(3, 4, 2, 2), 1.0]
    with pytest.raises(RuntimeError) as expected:
        before(*given)
    with pytest.raises(RuntimeError) as found:
        after(*given)
    assert str(expected.value) == str(found.value)


def test_groups_stride_and_sizes_may_be_values_of_the_graph() -> None:
    """As StyleGAN2 convolves: every sample by a weight of its own, in one grouped convolution."""

    def modulated(x: Tensor, w: Tensor) -> Tensor:
        n = x.shape[0]
        one = x.reshape(1, -1, 4, 4)
        y = F.conv_transpose2d(one, w, None, (n, 2), 0, (n - 2, 0), groups=n)
        return F.leaky_relu(y, 0.2)

    before, after, sites = fused(modulated)
    assert sites[0].operations == ("conv_transpose2d", "leaky_relu")
    never_unfused(after, *sites)
    same(before, after, [drawn(2, 3, 4, 4), drawn(6, 5, 3, 3)])
    same(before, after, [drawn(3, 3, 4, 4), drawn(9, 5, 3, 3)])


def test_contiguous_in_between_holds_for_the_result() -> None:
    def laid(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.conv_transpose2d(x, w, None, 2).contiguous())

    before, after, sites = fused(laid)
    assert sites[0].operations == ("conv_transpose2d", "contiguous", "relu")
    x = drawn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    w = drawn(8, 8, 2, 2)
    assert after(x, w).is_contiguous()
    close(before(x, w), after(x, w))


class Decoder(nn.Module):
    def __init__(self, last: str) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.gain = nn.Parameter(torch.ones(4, 1, 1))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv_transpose2d(x, self.up.weight, self.up.bias, 2)
        if self.last == "softmax":
            return F.softmax(y, 1)
        if self.last == "pow":
            return F.relu(y) ** 2
        if self.last == "gain":
            return F.relu(y) * self.gain
        if self.last == "group_norm":
            return F.group_norm(y, 2)
        if self.last == "sum":
            return y.sum(1)
        return F.relu(y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", ["relu", "softmax", "pow", "gain", "group_norm", "sum"])
def test_under_autocast_the_result_has_torchs_type(last: str, dtype: torch.dtype) -> None:
    before, after, (site,) = fused(Decoder(last))
    assert site.why == "its result is returned"
    x = drawn(2, 8, 4, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        expected, found = before(x), after(x)
    assert expected.dtype == found.dtype
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(found.float(), expected.float(), rtol=4 * epsilon, atol=4 * epsilon)
    assert after(x).dtype == torch.float32


def test_a_graph_of_two_has_two_calls_and_their_order() -> None:
    def decoder(x: Tensor, w: Tensor, v: Tensor, skip: Tensor) -> Tensor:
        y = torch.cat([F.relu(F.conv_transpose2d(x, w, None, 2)), skip], 1)
        return torch.tanh(F.conv_transpose2d(F.leaky_relu(y, 0.1), v, None, 2))

    before, after, sites = fused(decoder)
    assert [each.operations for each in sites] == [
        ("conv_transpose2d", "relu", "cat", "leaky_relu"),
        ("conv_transpose2d", "tanh"),
    ]
    never_unfused(after, *sites)
    same(
        before, after, [drawn(2, 3, 4, 4), drawn(3, 4, 2, 2), drawn(6, 2, 2, 2), drawn(2, 2, 8, 8)]
    )


def test_a_graph_that_is_fused_already_stays_as_it_is() -> None:
    module = traced(up_and_add)
    assert len(fuse_graph(module.graph, module)) == 1
    text = str(module.graph)
    assert fuse_graph(module.graph, module) == []
    assert str(module.graph) == text


def test_the_same_operations_elsewhere_are_the_same_chain() -> None:
    """Whatever their tensors are called: what is planned and compiled for one serves the other."""

    def snake(x: Tensor, w: Tensor, a: Tensor) -> Tensor:
        y = F.conv_transpose2d(x, w, None, 2)
        return y + torch.sin(a * y) ** 2 / a

    def after_bias(one: Tensor, kernel: Tensor, factor: Tensor, unused: Tensor) -> Tensor:
        y = F.conv_transpose2d(one, kernel, None, 2)
        return y + torch.sin(factor * y) ** 2 / factor

    (one,), (other,) = fused(snake)[2], fused(after_bias)[2]
    assert one.chain == other.chain
    assert str(one.chain) == "conv_transpose2d -> mul_to_add(mul_to_add.operand0)"


def test_dropout_in_place_that_drops_nothing_joins() -> None:
    def decoder(x: Tensor, w: Tensor) -> Tensor:
        return F.relu(F.dropout(F.conv_transpose2d(x, w, None, 2), 0.5, False, True))

    before, after, (site,) = fused(decoder)
    assert len(site.operations) == 3
    same(before, after, [drawn(2, 3, 4, 4), drawn(3, 4, 2, 2)])


def test_paths_are_those_of_modules() -> None:
    module = traced(up_and_add)
    for node in module.graph.nodes:
        node.meta["path"] = "decoder.up"
    (site,) = fuse_graph(module.graph, module)
    assert (site.path, site.name) == ("decoder.up", "conv_transpose2d")
    (fused_node,) = [node for node in module.graph.nodes if node.op == "call_function"]
    assert fused_node.meta["path"] == "decoder.up"
