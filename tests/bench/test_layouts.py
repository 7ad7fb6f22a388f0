"""Cases in both layouts: their tensors lie as they say, and relaying them is part of a call."""

import pytest
import torch

from transfuse import fills
from transfuse.bench.peers import Missing, Work, peers
from transfuse.bench.peers.torch_eager import CONV
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.record import Row
from transfuse.bench.subjects import DRAWN_LAYERS, subjects
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import add, amax, conv_transpose, flatten

GPU = "cuda:sm90"
LINES = {
    "contiguous": "n2 ci3 co4 i5x6 k3 s2",
    "channels_last": "n2 ci3 co4 i5x6 k3 s2 channels_last",
}
LAST = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def test_the_benchmark_has_both_layouts_on_a_gpu_alone() -> None:
    for slug in OPERATORS:
        first, second = subjects([slug], ["benchmark"], [], GPU)
        assert [first.case.problem.layout, second.case.problem.layout] == list(LAST)
        assert [first.name, second.name] == ["benchmark", "benchmark channels_last"]
        assert first.case.scalars == second.case.scalars
        assert first.chain == second.chain
        assert len(subjects([slug], ["benchmark"], [], "cpu")) == 1
        assert len(subjects([slug], ["cpu"], [], GPU)) == 1


def test_drawn_layers_come_in_both_layouts() -> None:
    found = subjects([], ["drawn-layers"], [], GPU)
    assert len({each.case.problem for each in found}) == len(found)
    flat = [each for each in found if each.case.problem.layout == "contiguous"]
    assert len({each.name for each in flat}) == len(flat) == DRAWN_LAYERS
    twice = [each for each in flat if each.case.problem.rank > 1]
    assert len(found) == len(flat) + len(twice)
    assert {str(each.chain)[-1] for each in found} == {"d", ")"}  # without a bias, and with one
    smaller = subjects([], ["drawn-layers"], [], "cpu")
    work = [sum(each.case.problem.flops() for each in group) for group in (smaller, found)]
    assert work[0] < work[1] / 10


def test_drawn_layers_can_be_asked_for_by_rank() -> None:
    one = subjects(["conv-transpose1d"], ["drawn-layers"], [], GPU)
    assert {each.case.problem.rank for each in one} == {1}


@pytest.mark.parametrize("fill", [fills.real, fills.integers, fills.special])
@pytest.mark.parametrize("layout", LINES)
def test_tensors_lie_as_their_problem_says(fill, layout) -> None:
    chain = Chain(conv_transpose(2, bias="b"), add("skip")).fitted(
        {"b": (4,), "skip": (2, 4, 11, 13)}
    )
    problem = Problem.parse(LINES[layout])
    x, weight, operands = fill(chain, problem, 0)
    for each in (x, weight, operands["skip"]):
        assert each.is_contiguous(memory_format=LAST[layout])
        assert not each.is_contiguous(memory_format=LAST[next(n for n in LAST if n != layout)])
    other = next(line for name, line in LINES.items() if name != layout)
    again, *_ = fill(chain, Problem.parse(other), 0)
    assert torch.equal(x.nan_to_num(9), again.nan_to_num(9))


@pytest.mark.parametrize("layout", LINES)
def test_the_other_layout_is_within_a_call(layout, monkeypatch) -> None:
    """The convolution sees the other layout; who calls sees its own, before and after."""
    chain, problem = Chain(conv_transpose(2)), Problem.parse(LINES[layout])
    x, weight, _ = fills.real(chain, problem, 0)
    seen = []
    convolve = torch.nn.functional.conv_transpose2d

    def watched(x, weight, *rest):
        seen.extend(each.is_contiguous(memory_format=LAST[layout]) for each in (x, weight))
        return convolve(x, weight, *rest)

    monkeypatch.setitem(CONV, 2, watched)
    work = Work(chain, problem, PRECISIONS["fp32"], x, weight)
    runner = peers()["torch other layout"].build(work)
    assert runner.adapt(x) is x
    y = runner.run(x)
    assert seen == [False, False]
    assert y.is_contiguous(memory_format=LAST[layout])
    assert torch.allclose(y, convolve(x, weight, stride=2), atol=1e-5)


def test_a_result_of_another_form_is_contiguous() -> None:
    problem = Problem.parse(LINES["channels_last"])
    for last in (flatten(), amax(-1)):
        chain = Chain(conv_transpose(2), last)
        x, weight, _ = fills.real(chain, problem, 0)
        work = Work(chain, problem, PRECISIONS["fp32"], x, weight)
        assert peers()["torch other layout"].build(work).run(x).is_contiguous()


def test_one_axis_has_one_layout() -> None:
    problem = Problem.parse("n2 ci3 co4 i5 k3")
    x, weight, _ = fills.real(Chain(conv_transpose(1)), problem, 0)
    work = Work(Chain(conv_transpose(1)), problem, PRECISIONS["fp32"], x, weight)
    with pytest.raises(Missing, match="no channels_last for one spatial axis"):
        peers()["torch other layout"].build(work)


@pytest.mark.parametrize(
    ("layout", "setting"), [("contiguous", "fp32"), ("channels_last", "fp32, channels_last")]
)
def test_a_row_says_its_layout(layout, setting) -> None:
    row = Row("r", "s", "n", LINES[layout], "fp32", "cpu", "transfuse", "ok")
    assert row.setting == setting
