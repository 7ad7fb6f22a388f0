"""The choice between our kernels and cuDNN's: its numbers; larger layers never cost less."""

import json
from dataclasses import replace

import pytest

from transfuse.backends.triton import versus_cudnn as model
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.drawn_layers import SMALL, drawn_layer
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, sigmoid

KEPT = json.loads(model.FILE.read_text(encoding="utf-8"))
KINDS = [
    f"{arithmetic} {layout}"
    for arithmetic in ("fp16", "tf32")
    for layout in ("contiguous", "channels_last")
]


def test_every_kind_has_costs_none_below_zero() -> None:
    assert sorted(KEPT["costs"]) == sorted(KINDS)
    known = set()
    for seed in range(200):
        known |= set(model.amounts(*drawn_layer(seed)))
    for each in KEPT["costs"].values():
        for costs in (each["ours"], each["cudnn"]):
            assert set(costs) <= known
            assert min(costs.values()) >= 0
            assert costs["calls"] > 1  # no kernel is done in a microsecond


def test_the_file_says_what_it_was_measured_on() -> None:
    assert KEPT["measured"]["layers"] >= 100
    assert KEPT["measured"]["torch"]["cudnn"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_layer_never_costs_less(kind) -> None:
    arithmetic, layout = kind.split()
    for seed in range(300):
        problem, bias = drawn_layer(seed, SMALL)
        problem = replace(Case(problem).on(arithmetic, "cuda:sm90").problem, layout=layout)
        assert model.kind(problem) == kind
        larger = [
            replace(problem, batch=problem.batch + 1),
            problem.at(tuple(size + 1 for size in problem.spatial)),
        ]
        if problem.groups == 1:
            larger.append(replace(problem, out_channels=problem.out_channels + 1))
            larger.append(replace(problem, in_channels=problem.in_channels + 1))
        for costs in KEPT["costs"][kind].values():
            least = model.microseconds(costs, model.amounts(problem, bias))
            for each in larger:
                assert model.microseconds(costs, model.amounts(each, bias)) >= least


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("n1 ci2 co2 i3 k1 bf16 cuda", "fp16 contiguous"),
        ("n1 ci2 co2 i3x3 k1 bf16 channels_last cuda", "fp16 channels_last"),
        ("n1 ci2 co2 i3x3 k1 fp16 strided cuda", "fp16 contiguous"),
        ("n1 ci2 co2 i3x3 k1 fp32 tf32 cuda", "tf32 contiguous"),
        ("n1 ci2 co2 i3x3 k1 fp32 cuda", "fp32 contiguous"),
    ],
)
def test_kinds(line, kind) -> None:
    assert model.kind(Problem.parse(line)) == kind


def test_what_was_not_measured_is_kept(monkeypatch) -> None:
    """float32 in three products and float64 have no costs: the backend runs them itself."""
    for dtype in ("fp32", "fp64"):
        assert model.slower(Problem.parse(f"n4 ci256 co1024 i10x10 k1 {dtype} cuda"), True) == ""


def test_the_cheaper_one_is_chosen(monkeypatch) -> None:
    problem = Problem.parse("n4 ci16 co16 i10x10 k3 fp16 cuda:sm90")
    prices = {"ours": {"calls": 10.0}, "cudnn": {"calls": 6.0, "input": 0.0, "output": 0.1}}
    monkeypatch.setattr(model, "_costs", lambda: {"fp16 contiguous": prices})
    assert model.slower(problem, bias=True) == "cuDNN is expected to take 0.6 of its time"
    assert model.slower(replace(problem, spatial=(999, 999)), bias=True) == ""
    assert model.slower(replace(problem, layout="channels_last"), bias=True) == ""


def test_what_cudnn_does_not_have_is_kept() -> None:
    line = "n4 ci256 co1024 i10x10 k1 s1 d2 fp16 channels_last cuda"
    assert model.slower(Problem.parse(line), bias=True)
    assert model.slower(Problem.parse(f"{line} op1"), bias=True) == ""


def test_amounts_of_a_layer() -> None:
    problem = Problem.parse("n2 ci16 co32 i10x10 k4 s2 p1 fp16 cuda")
    found = model.amounts(problem, bias=False)
    assert found["input"] == 2 * 2 * 16 * 100 / 1e6
    assert found["output"] == 2 * 2 * 32 * 400 / 1e6
    assert found["weights"] == 2 * 16 * 32 * 16 / 1e6
    assert found["products"] == problem.flops() / 1e9
    assert found["phases"] == 4
    assert found["strided: output"] == found["output"]
    assert not {name for name in found if name.startswith(("bias", "dilated", "grouped"))}
    odd = model.amounts(replace(problem, in_channels=17), bias=True)
    assert odd["products"] == pytest.approx(2 * found["products"], rel=1e-6)
    assert odd["bias: output"] == odd["output"]


def test_a_chain_is_ours_whatever_its_convolution_costs() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from transfuse.backends.triton import Triton

    problem = Problem.parse("n4 ci256 co1024 i10x10 k1 fp16 channels_last cuda")
    assert Triton().verdict(Chain(conv_transpose(2)), problem).yields
    assert not Triton().verdict(Chain(conv_transpose(2), sigmoid()), problem).yields
