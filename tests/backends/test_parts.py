"""A call in parts: the same bits, and a part for each pass of the plan, in order."""

import ctypes
from time import perf_counter

import pytest
import torch

from transfuse import fills
from transfuse.backends import BACKENDS
from transfuse.backends.base import Backend, in_parts, prepared
from transfuse.backends.cpu import library
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    batch_norm,
    cat,
    conv_transpose,
    flatten,
    group_norm,
    log_softmax,
    lp_pool,
    max_pool,
    sigmoid,
    softmax,
    tanh,
)

LINE = "n2 ci4 co8 i9x9 k4 s2 p1 fp32 cpu"
LARGE = "n2 ci4 co8 i200x200 k4 s2 p1 fp32 cpu"

CHAINS: dict[str, tuple[str, tuple[Stage, ...], int]] = {
    "alone": (LINE, (conv_transpose(2),), 1),
    "a product": (LINE.replace("i9x9", "i1x1").replace("p1", "p0"), (conv_transpose(2, "b"),), 1),
    "a pool before": (LINE, (avg_pool(2), conv_transpose(2), sigmoid()), 2),
    "stored": (LARGE, (conv_transpose(2), softmax("space"), max_pool(2)), 2),
    "stored in the output": (LARGE, (conv_transpose(2), group_norm(2), tanh()), 2),
    "computed again": (LARGE.replace("ci4", "ci1").replace("k4", "k2").replace("p1", "p0"),
                       (conv_transpose(2), softmax("space"), softmax("channels")), 2),
    "twice": (
        LARGE,
        (conv_transpose(2), batch_norm(weight="w", bias="b", training=True), softmax("space")),
        3,
    ),
    "updating": (
        LINE,
        (conv_transpose(2), batch_norm("mean", "var", training=True), sigmoid()),
        2,
    ),
    "swept before and after": (
        LINE,
        (tanh(), lp_pool(2, 2), conv_transpose(2), log_softmax("space"), add("skip")),
        4,
    ),
    "swept behind two passes": (
        LARGE, (conv_transpose(2), group_norm(2), lp_pool(2, 2), tanh()), 3
    ),
    "of another form": (LINE, (conv_transpose(2), cat("more"), flatten()), 2),
    "in 16 bits": (LARGE.replace("fp32", "bf16"), (conv_transpose(2), group_norm(2)), 2),
    "side by side": ("n64 ci32 co16 i3x3 k3 s1 p1 fp32 cpu", (conv_transpose(2), sigmoid()), 1),
}  # fmt: skip


def case(name: str) -> tuple[Chain, Problem]:
    line, stages, _ = CHAINS[name]
    problem = Problem.parse(line)
    shapes = {"skip": (2, 8, 1, 1), "more": (2, 3, 18, 18)}
    return Chain(*(each.fitted(shapes, 2) for each in stages)), problem


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.name != "triton"],
                         ids=lambda each: each.name)  # fmt: skip
@pytest.mark.parametrize("name", CHAINS)
def test_a_part_for_each_pass_and_the_same_bits(name: str, backend: Backend) -> None:
    chain, problem = case(name)
    x, weight, operands = fills.real(chain, problem, 0)
    run = prepared(backend, chain, problem)
    expected = run(x, weight, {name: each.clone() for name, each in operands.items()})
    out = torch.full_like(expected, torch.nan)
    found = list(in_parts(run, x, weight, operands, out))
    assert out.equal(expected)
    passes = backend.plan(chain, problem).passes
    assert [part.at for part in found] == list(range(len(passes)))
    if backend.name == "cpu":
        assert len(passes) == CHAINS[name][2]


@pytest.mark.parametrize("name", ["a pool before", "stored", "stored in the output", "twice"])
def test_the_core_tells_the_time_of_each_of_its_passes(name: str) -> None:
    chain, problem = case(name)
    [cpu] = [each for each in BACKENDS if each.name == "cpu"]
    x, weight, operands = fills.real(chain, problem, 0)
    run = prepared(cpu, chain, problem)
    out = run(x, weight, operands)
    begun = perf_counter()
    seconds = [part.seconds for part in in_parts(run, x, weight, operands, out)]
    within = perf_counter() - begun
    assert all(each is not None and each > 0 for each in seconds)
    assert sum(each or 0.0 for each in seconds) <= within


def test_the_core_writes_no_more_than_its_passes() -> None:
    chain, problem = case("twice")
    [cpu] = [each for each in BACKENDS if each.name == "cpu"]
    x, weight, operands = fills.real(chain, problem, 0)
    core = prepared(cpu, chain, problem)
    out = core(x, weight, operands)
    seconds = (ctypes.c_double * core.ready.room)(*[-1.0] * core.ready.room)
    core._run(x, weight, operands, out, seconds)
    passes = CHAINS["twice"][2]
    assert all(each > 0 for each in seconds[:passes])
    assert all(each == -1.0 for each in seconds[passes:])


def test_there_must_be_room_for_the_times() -> None:
    core = library.load()
    assert core is not None
    chain, problem = case("alone")
    [cpu] = [each for each in BACKENDS if each.name == "cpu"]
    x, weight, operands = fills.real(chain, problem, 0)
    run = prepared(cpu, chain, problem)
    out = run(x, weight, operands)
    program = run.ready.program(x, out, operands)
    program.weights = weight.data_ptr()
    assert core.transfuse_run_timed(program, 1, None) == 1
    assert core.transfuse_message() == b"seconds is a null pointer"
