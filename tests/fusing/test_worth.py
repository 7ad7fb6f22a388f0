"""Which chain is best: what a plan says that a call will do decides how far one reaches."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fusing.captured import fused, same, traced
from transfuse import dispatch
from transfuse.backends import BACKENDS, Verdict
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.fusing.examples import Examples
from transfuse.fusing.match import Match
from transfuse.fusing.rewriting import fuse_graph
from transfuse.problem import Problem

GIVEN = [torch.randn(2, 3, 4, 4).double(), torch.randn(3, 4, 2, 2).double()]


def up(x: Tensor, w: Tensor) -> Tensor:
    return F.relu(F.conv_transpose2d(F.leaky_relu(x / 3, 0.1), w, None, 2))


BEFORE = ("div", "leaky_relu")
WHOLE = ("conv_transpose2d", "relu")


@pytest.mark.parametrize(
    ("each", "compiled", "taken"),
    [
        (0, False, BEFORE + WHOLE),  # in the convolution's own pass
        (1, False, BEFORE + WHOLE),  # one pass for two operations
        (2, False, WHOLE),  # as many as torch takes
        (0, True, BEFORE + WHOLE),
        (1, True, WHOLE),  # a compiler makes one pass of them, too, or none
    ],
)
def test_what_stands_before_joins_where_it_saves_passes(
    monkeypatch: pytest.MonkeyPatch, each: int, compiled: bool, taken: tuple[str, ...]
) -> None:
    def passes(self: Examples, match: Match) -> int:
        return 1 + (each if match.before else 0)

    monkeypatch.setattr(Examples, "passes", passes)
    module = traced(up)
    (site,) = fuse_graph(module.graph, module, compiled)
    assert site.operations == taken


def test_with_examples_the_backends_plan_is_asked() -> None:
    before, after, (site,) = fused(up, GIVEN)
    assert site.chain is not None
    counted = len(dispatch.decide(site.chain, problem()).backend.plan(site.chain, problem()).passes)
    bare = Chain(*site.chain.stages[site.chain.at :])
    alone = len(dispatch.decide(bare, problem()).backend.plan(bare, problem()).passes)
    assert counted - alone < max(1, len(site.chain.prologue))
    same(before, after, GIVEN)


def problem() -> Problem:
    return Problem.parse("n2 ci3 co4 i4x4 k2 s2 fp64 cpu")


def refusing(monkeypatch: pytest.MonkeyPatch, says: Callable[[Chain], Verdict]) -> None:
    """The CPU backend with another verdict."""

    class Other(Cpu):
        def verdict(self, chain: Chain, problem: Problem) -> Verdict:
            return says(chain)

    backends = tuple(Other() if isinstance(each, Cpu) else each for each in BACKENDS)
    monkeypatch.setattr(dispatch, "BACKENDS", backends)


def test_a_site_that_yields_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda chain: Verdict(yields="torch is faster"))
    _, after, (site,) = fused(up, GIVEN)
    assert site.chain is None
    assert "torch is faster" in site.why
    assert "fused" not in after.code


def test_a_convolution_that_yields_alone_may_not_with_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing(monkeypatch, lambda chain: Verdict(yields="" if chain.epilogue else "torch is faster"))
    _, _, (site,) = fused(up, GIVEN)
    assert site.operations[-2:] == WHOLE


def test_the_chain_ends_before_what_no_backend_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, lambda chain: Verdict("no relu today" if chain.epilogue else ""))
    _, _, (site,) = fused(up, GIVEN)
    assert site.operations[-1] == "conv_transpose2d"
    assert "no relu today" in site.why
