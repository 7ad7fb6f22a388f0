"""Routes: what the convolution's kernel holds, what becomes sweeps, and what torch alone has."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import stages as s
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import Env, Kind, Stage

X, W = torch.randn(2, 8, 5, 6), torch.randn(8, 8, 3, 3)
SKIP = torch.randn(2, 8, 7, 8)
PROBLEM = Problem.parse("n2 ci8 co8 i5x6 k3 fp32 cpu")


@dataclass(frozen=True)
class Flip(Stage):
    """A stage of a user's own that says nothing of sweeps."""

    kind: ClassVar[Kind] = Kind.AXES
    name: ClassVar[str] = "flip"

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x.flip(1)


def legs(*then: Stage, before: tuple[Stage, ...] = ()) -> list[str]:
    chain = Chain(*before, s.conv_transpose(2), *then)
    return [each.does for each in Cpu().plan(chain, PROBLEM).passes]


def test_element_stages_cost_no_sweep_of_their_own() -> None:
    assert legs(s.relu(), s.softmax(2), s.scale(2.0), s.tanh()) == [
        "conv_transpose2d · relu",
        "gather exponentials",
        "softmax(2) · scale(2.0) · tanh",
    ]


def test_what_stands_before_the_convolution() -> None:
    assert legs(before=(s.tanh(),)) == ["tanh · conv_transpose2d"]
    assert legs(before=(s.sin(), s.max_pool(2), s.relu())) == [
        "sin · max_pool(2) · relu",
        "conv_transpose2d",
    ]
    assert legs(before=(s.softmax("channels"), s.relu()))[1:] == [
        "softmax(channels)",
        "relu · conv_transpose2d",
    ]


def test_torch_takes_over_from_a_stage_that_it_alone_has() -> None:
    then = (s.softmax(2), Flip(), s.relu())
    assert legs(*then)[-2:] == ["flip · in torch", "relu · in torch"]
    chain = Chain(s.conv_transpose(2), *then)
    found = transfuse.explain(transfuse.conv_transpose, X, W, then=then, device="cpu")
    assert "from flip on torch runs it" in str(found).replace("\n", " ")
    assert Cpu().route(chain, PROBLEM).rest == then[1:]
    y = transfuse.conv_transpose(X, W, then=then, backend="cpu")
    right = F.conv_transpose2d(X, W).softmax(2).flip(1).relu()
    torch.testing.assert_close(y, right)


def test_a_residual_is_added_in_the_convolutions_own_pass() -> None:
    chain = Chain(s.conv_transpose(2), s.add("skip"), s.relu()).fitted({"skip": (2, 8, 7, 8)})
    assert [each.does for each in Cpu().plan(chain, PROBLEM).passes] == [
        "conv_transpose2d · add(skip) · relu"
    ]
    y = transfuse.conv_transpose(X, W, then=[s.add(SKIP), s.relu()], backend="cpu")
    torch.testing.assert_close(y, (F.conv_transpose2d(X, W) + SKIP).relu())


@pytest.mark.parametrize("first", [False, True])
def test_a_concatenation_is_written_in_place(first: bool) -> None:
    assert legs(s.cat("skip", first, 3)) == ["conv_transpose2d", "copy skip"]
    y = transfuse.conv_transpose(X, W, then=[s.cat(SKIP, first)], backend="cpu")
    parts = (F.conv_transpose2d(X, W), SKIP)
    torch.testing.assert_close(y, torch.cat(parts[::-1] if first else parts, 1))


def test_running_statistics_move_behind_a_sweep() -> None:
    mean, var = torch.zeros(8), torch.ones(8)
    norm = torch.nn.BatchNorm2d(8, affine=False)
    then = [s.softmax(2), s.batch_norm(mean, var, training=True)]
    y = transfuse.conv_transpose(X, W, then=then, backend="cpu")
    right = norm(F.conv_transpose2d(X, W).softmax(2))
    torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mean, norm.running_mean)
    torch.testing.assert_close(var, norm.running_var)


def test_an_output_of_any_strides() -> None:
    then = [s.log_softmax(3), s.max_pool(2)]
    right = F.max_pool2d(F.conv_transpose2d(X, W).log_softmax(3), 2)
    out = torch.zeros(2, 8, 3, 8)[..., ::2]
    assert transfuse.conv_transpose(X, W, then=then, out=out, backend="cpu") is out
    torch.testing.assert_close(out, right)
    y = transfuse.conv_transpose(X, W, then=[*then, s.flatten()], backend="cpu")
    torch.testing.assert_close(y, right.flatten(1))


def test_the_result_keeps_the_layout_of_the_input() -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    y = transfuse.conv_transpose(x, W, then=[s.layer_norm("channels"), s.relu()], backend="cpu")
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["x", "<input>"])
def test_an_operand_may_have_any_name(name: str) -> None:
    chain = Chain(s.conv_transpose(2), s.softmax(2), s.scale(name)).fitted({name: (2, 8, 7, 8)})
    y = Cpu().run(chain, PROBLEM, X, W, {name: SKIP})
    torch.testing.assert_close(y, F.conv_transpose2d(X, W).softmax(2) * SKIP)


def test_a_stage_of_torchs_alone_before_the_convolution_is_named() -> None:
    chain = Chain(s.tanh(), Flip(), s.conv_transpose(2))
    told = "before the convolution it has no kernel for flip"
    assert Cpu().verdict(chain, PROBLEM).reason == told


def test_what_a_stage_refuses_is_raised_and_no_verdict() -> None:
    with pytest.raises(RuntimeError, match="does not divide the 8 channels"):
        Cpu().verdict(Chain(s.conv_transpose(2), s.group_norm(3)), PROBLEM)
