"""Maps before the convolution: computed where it reads its inputs, and zeros stay zeros."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import transfuse
from tests.backends.test_cpu_inputs import GAPS, IN_PLACE, call, integers, last
from transfuse import Chain, Problem
from transfuse.backends.cpu import Cpu, library, programs
from transfuse.backends.cpu import before as rule
from transfuse.fills import special
from transfuse.reference import scatter
from transfuse.stages import (
    add,
    batch_norm,
    conv_transpose,
    leaky_relu,
    max_pool,
    mish,
    relu,
    scale,
    sigmoid,
    silu,
    sub,
)

ROWS = (
    "n2 ci20 co20 i5x40 k3 s2 p1 g20 fp32",  # rows of channels that are groups of their own
    "n2 ci3 co3 i3x200 k3x7 s1 p1 g3 fp64",
    "n1 ci2 co2 i5000 k4 s2 p1 g2 fp32",  # longer than a strip
    "n1 ci36 co36 i3x9 k3 s2 p1 g36 fp32",  # channels in vectors
)


def plan(chain: Chain, problem: Problem) -> list[str]:
    return [each.does for each in Cpu().plan(chain, problem).passes]


@pytest.mark.parametrize("line", [*IN_PLACE, *GAPS, *ROWS])
def test_maps_of_all_operands_in_both_layouts(isa: str, line: str) -> None:
    """Numbers, one value per channel, whole tensors; the input stays as it is."""
    problem = Problem.parse(line)
    x, w = integers(problem, problem.input.dims, 0), integers(problem, problem.weight, 1)
    line_, whole = integers(problem, (problem.in_channels,), 2), integers(problem, x.shape, 3)
    row = integers(problem, (1, 1, *x.shape[2:]), 4)
    wide = line_.view(-1, *(1,) * problem.rank)
    for before, mapped in (
        ([add(3.0)], x + 3),
        ([scale(line_), add(1.0)], x * wide + 1),
        ([add(whole), relu(), add(line_)], (x + whole).relu() + wide),
        ([sub(row)], x - row),
    ):
        expected = scatter(problem, mapped.double(), w.double())
        for each in (x, last(x)) if problem.rank > 1 else (x,):
            kept = each.clone()
            assert call(problem, each, w, before=before).double().equal(expected)
            assert each.equal(kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_a_map_gives_is_not_rounded(isa: str, dtype: torch.dtype) -> None:
    """Values of 16 bits that float32 alone holds after the map; operands of other types."""
    x = torch.arange(-48, 48).view(2, 4, 12).to(dtype)
    w = torch.ones(4, 16, 3, dtype=dtype)
    y = transfuse.conv_transpose(x, w, before=[add(2049.0), scale(0.25)], backend="cpu")
    right = F.conv_transpose1d((x.double() + 2049) * 0.25, w.double())
    assert y.equal(right.to(dtype))


@pytest.mark.parametrize("before", [[silu()], [relu(), silu()], [leaky_relu(0.1), add(1.0)]])
def test_nan_and_inf(isa: str, before: list[Any]) -> None:
    """They pass, and padding is no input: weights that are not finite meet no zero there."""
    problem = Problem.parse("n2 ci3 co18 i7x9 k3 s2 p1 fp32")
    chain = Chain(*before, conv_transpose(2))
    for seed in range(3):
        x, w, _ = special(chain, problem, seed)
        mapped = x.double()
        for stage in before:
            mapped = stage.apply(mapped, {})
        y, expected = call(problem, x, w, before=before), scatter(problem, mapped, w.double())
        assert torch.equal(y.isnan(), expected.isnan())
        torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("pool", [max_pool(2), max_pool(3, 2, 1), max_pool(2, 1)])
def test_maps_on_both_sides_of_a_pool(isa: str, pool: Any) -> None:
    problem = Problem.parse("n2 ci5 co18 i9x12 k3 s2 p1 fp32")
    x, w = integers(problem, problem.input.dims, 0), integers(problem, problem.weight, 1)
    line, whole = integers(problem, (5,), 2), integers(problem, x.shape, 3)
    before = [scale(line), add(whole), pool, relu(), sub(line)]
    wide = line.view(-1, 1, 1)
    values = pool.apply((x * wide + whole).double(), {}).relu() - wide
    inner = problem.at(tuple(values.shape[2:]))
    for each in (x, last(x)):
        y = call(problem, each, w, before=before)
        assert y.double().equal(scatter(inner, values, w.double()))


def test_an_input_that_is_the_same_in_all_channels_and_samples(isa: str) -> None:
    """Rows at one address that a map makes different."""
    problem = Problem.parse("n3 ci4 co4 i5x40 k3 s2 p1 g4 fp32")
    one, w = integers(problem, (1, 1, 1, 40), 0), integers(problem, problem.weight, 1)
    x, whole = one.expand(problem.input.dims), integers(problem, problem.input.dims, 2)
    y = call(problem, x, w, before=[add(whole)])
    assert y.double().equal(scatter(problem, (x + whole).double(), w.double()))


def test_calls_again_with_other_operands() -> None:
    """Programs are kept; addresses change."""
    problem = Problem.parse("n2 ci8 co24 i5x9 k3 s2 p1 fp32")
    w = integers(problem, problem.weight, 1)
    for seed in range(6):
        x = integers(problem, problem.input.dims, seed)
        whole, line = integers(problem, x.shape, 10 + seed), integers(problem, (8,), 20 + seed)
        y = call(problem, x, w, before=[add(whole), scale(line)])
        mapped = (x + whole) * line.view(-1, 1, 1)
        assert y.double().equal(scatter(problem, mapped.double(), w.double()))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, w = torch.randn(1, 64, 500), torch.randn(64, 32, 16)
    found = []
    for threads in (1, 2, 5):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        found.append(transfuse.conv_transpose(x, w, stride=8, before=[silu()], backend="cpu"))
        torch.set_num_threads(before)
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


VOCODER = Problem.parse("n1 ci512 co256 i256 k16 s8 p4 fp32 cpu")


def test_one_pass() -> None:
    chain = Chain(leaky_relu(0.1), conv_transpose(1, bias="b"))
    assert plan(chain, VOCODER) == ["leaky_relu(0.1) · conv_transpose1d(+ b)"]
    assert Cpu().plan(chain, VOCODER).scratch == 0
    chain = Chain(scale("a"), max_pool(2), sigmoid(), conv_transpose(1))
    assert plan(chain, VOCODER) == ["scale(a) · max_pool(2) · sigmoid", "conv_transpose1d"]


def test_what_takes_longer_to_compute_again_is_stored() -> None:
    """The rule, by counts: an input that tiles read often, and exponentials."""
    problem = Problem.parse("n1 ci32 co64 i32x64x64 k3 s2 p1 fp32 cpu")
    often = Chain(mish(), conv_transpose(3))
    assert plan(often, problem) == ["mish", "conv_transpose3d"]
    note = Cpu().plan(often, problem).note
    assert "mish is stored first, which takes less time than to compute it" in note
    # Plain arithmetic costs less than to store.
    layer = Problem.parse("n1 ci128 co64 i128x128 k4 s2 p1 fp32 cpu")
    assert len(plan(Chain(relu(), conv_transpose(2)), layer)) == 1
    # One tile reads an input once.
    assert len(plan(Chain(mish(), conv_transpose(1)), VOCODER)) == 1
    # Windows that overlap compute a map again, those beside one another do not.
    assert len(plan(Chain(mish(), max_pool(4, 1), conv_transpose(3)), problem)) == 3
    assert len(plan(Chain(mish(), max_pool(2), conv_transpose(3)), problem)) == 2


def test_weights_of_one_position_are_still_read_as_they_lie() -> None:
    problem = Problem.parse("n16 ci100 co512 i1x1 k4 fp32 cpu")
    chain = Chain(relu(), conv_transpose(2))
    assert plan(chain, problem) == ["relu", "conv_transpose2d"]
    assert "read as they lie" in Cpu().plan(chain, problem).note
    then = Chain(relu(), conv_transpose(2), relu())  # where weights are packed as it is
    assert len(plan(then, problem)) == 1


def test_a_quicker_way_that_maps_would_bar_is_kept(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by columns: weights that are packed in another order tell."""
    problem = Problem.parse("n2 ci48 co4 i7x7 k3 s1 p1 fp32 cpu")
    chain = Chain(relu(), conv_transpose(2))
    core = library.load()
    assert core is not None
    alone, mapped = rule._alone(chain, problem), rule._alone(chain, problem)
    monkeypatch.setattr(rule, "_mapped", lambda chain, problem: mapped)
    assert not rule.slower_order(core, alone, mapped)
    assert rule.stored(chain, problem) == ""
    mapped.out_channels = 8  # as if weights were packed for another way
    assert rule.slower_order(core, alone, mapped)
    assert "in a quicker order" in rule.stored(chain, problem)


def copies(line: str, dtype: str) -> float:
    core = library.load()
    assert core is not None
    found = library.Times()
    problem = Problem.parse(f"{line} {dtype} cpu")
    library.check(core, core.transfuse_copies(programs.convolution(problem, 1.0), found))
    return found[0]


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16", "bf16"])
def test_copies_of_an_input(isa: str, dtype: str) -> None:
    """One tile copies each input once; kernels that fit their stride share none."""
    assert copies("n1 ci4 co4 i5x6 k3", dtype) == 1.0
    assert copies("n0 ci4 co4 i5x6 k3", dtype) == 1.0
    assert copies("n1 ci64 co64 i256x256 k7", dtype) > 1.2
    assert 1.0 <= copies("n1 ci64 co64 i256x256 k1", dtype) < 1.01
    # Inputs beyond every output are copied by none.
    assert copies("n1 ci4 co4 i100 k1 p40", dtype) == pytest.approx(0.2)


def test_a_map_makes_it_dearer_to_convolve_again() -> None:
    problem = Problem.parse("n1 ci2 co64 i64x64 k1 fp32 cpu")
    norm = batch_norm(training=True)
    assert Cpu().plan(Chain(relu(), conv_transpose(2), norm), problem).recomputed
    assert not Cpu().plan(Chain(mish(), conv_transpose(2), norm), problem).recomputed
