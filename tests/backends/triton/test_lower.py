"""Chains as launches of the GPU: the passes of the five operators, and every refusal."""

from dataclasses import replace
from math import log, nan, pi

import pytest

from transfuse.backends import triton as backend
from transfuse.backends.triton import Triton, lower
from transfuse.backends.triton.epilogue.op_table import OpArguments, thirds
from transfuse.backends.triton.segments import Lowered, TileOp
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    elu,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum

PLAIN, SOFTMAX, POOL, NORM, MAX = OPERATORS


def lowered(slug: str, arithmetic: str = "tf32") -> Lowered:
    case = OPERATORS[slug].case("benchmark").on(arithmetic, "cuda:sm90")
    chain = OPERATORS[slug].bound(case)
    return lower.lowered(chain, fused(chain, case.problem))


def summary(found: Lowered) -> list[str]:
    """A line for each pass."""
    lines = []
    for each in found.segments:
        parts = ["convolve" if each.convolves else "finish"]
        parts += [step.op for step in each.before]
        parts += [str(each.window)] if each.window else []
        parts += [step.op for step in each.after]
        parts += [f"early {found.statistics[each.early].kind}"] if each.early is not None else []
        parts += [f"late {found.statistics[each.late].kind}"] if each.late is not None else []
        lines.append(" ".join([*parts, *(["store"] if each.stores else [])]))
    return lines


@pytest.mark.parametrize(
    ("slug", "arithmetic", "passes"),
    [
        (PLAIN, "tf32", ["convolve store"]),
        (SOFTMAX, "fp16", ["convolve add softmax add sigmoid store"]),
        (
            POOL,
            "tf32",
            ["convolve clamp late exponentials", "convolve clamp bounded_apply scale store"],
        ),
        (
            POOL,
            "fp32",
            ["convolve clamp late exponentials store", "finish bounded_apply scale store"],
        ),
        (
            NORM,
            "fp16",
            [
                "convolve extremum_pool(2 by sign of bn_weight) early moments store",
                "finish batch_apply scale add tanh group_norm scale add store",
            ],
        ),
        (MAX, "bf16", ["convolve max_pool(6) add sum store"]),
    ],
)
def test_passes_of_the_operators(slug: str, arithmetic: str, passes: list[str]) -> None:
    assert summary(lowered(slug, arithmetic)) == passes


def test_prologue_and_factor() -> None:
    found = lowered(POOL)
    assert str(found.pool) == "avg_pool(2)"
    assert found.pool is not None
    assert found.pool.divisor == 1
    assert found.factor == 1 / 8
    assert lowered(PLAIN).pool is None


def refusal(line: str, *then: Stage, before: tuple[Stage, ...] = ()) -> str:
    problem = replace(Problem.parse(line), device="cuda:sm90")
    return backend._refuses(Chain(*before, conv_transpose(problem.rank), *then), problem)


FLAT = "n2 ci4 co6 i9x9 k3"


@pytest.mark.parametrize(
    ("line", "then", "reason"),
    [
        (
            FLAT,
            (max_pool(2), sigmoid(), avg_pool(2)),
            "it pools once after the convolution, and avg_pool(2) is one more",
        ),
        (
            "n2 ci4 co6 i9x9 k3 g2",
            (softmax("channels"), max_pool(2)),
            "it pools in the convolution's own pass, and max_pool(2) comes after a cut",
        ),
        (
            "n64 ci4 co64 i99x99 k3",
            (batch_norm(training=True), max_pool(2, 1)),
            "windows of max_pool(2, stride 1) overlap where a statistic is gathered before them",
        ),
        (
            FLAT,
            (channel_sum("channels", keepdim=True), max_pool(2, 1), sigmoid()),
            "it sums over channels after a window, not before one",
        ),
        (
            "n1 ci4 co20000 i3x3 k1",
            (softmax("channels"),),
            "softmax and sum over 20000 channels do not fit one tile",
        ),
    ],
    ids=["two pools", "late pool", "overlap", "sum first", "channels"],
)
def test_refusals(line: str, then: tuple[Stage, ...], reason: str) -> None:
    assert refusal(line, *then) == reason


def test_refusals_before_the_convolution() -> None:
    told = refusal(FLAT, before=(batch_norm(training=True),))
    assert told == "before the convolution it has no kernel for batch_norm(batch)"
    told = refusal(FLAT, before=(max_pool(2), avg_pool(3)))
    assert told == "before the convolution it has no kernel for avg_pool(3)"


def test_windows_that_overlap_are_stored_where_products_cost_more() -> None:
    then = (max_pool(3, 1, 1),)
    told = refusal("n16 ci128 co64 i98x118 k3 s2 p1 fp16", *then)
    assert told.startswith("to store what max_pool(3, stride 1, padding 1) reads costs less")
    assert not refusal("n16 ci1 co64 i98x118 k3 s2 p1 fp16", *then)


def test_windows_are_stored_where_portable_tiles_multiply_slowly() -> None:
    """Windows that share nothing, too; where few products are to be had it is not worth it."""
    then = (sigmoid(), avg_pool(2))
    told = refusal("n16 ci64 co32 i19x21x18 k5 s1 p2 fp16", *then)
    assert told.startswith("to store what avg_pool(2) reads costs less")
    assert not refusal("n16 ci1 co32 i19x21x18 k5 s1 p2 fp16", *then)


def test_strides_beyond_all_sizes_are_not_looked_at() -> None:
    """Their places are more than memory holds; the answer comes at once."""
    assert not refusal(f"n3 ci5 co6 i8 k2 s{2**30} p{2**29} fp32", max_pool(2))


def test_maps_of_many_instructions_leave_strips() -> None:
    layer = "n32 ci64 co64 i120x80 k4 s2 p1 fp16"
    told = refusal(layer, tanh(), elu())
    assert told == "elu has too many instructions for the many values of a strip"
    assert not refusal(layer, tanh(), sigmoid())
    small = "n1 ci64 co64 i12x8 k4 s2 p1 fp16"
    assert not refusal(small, tanh(), elu())


def test_refused_without_a_gpu() -> None:
    problem = Problem.parse(FLAT)
    assert Triton().verdict(Chain(conv_transpose(2)), problem).reason == "tensors are on cpu"


def test_dropped_bias_still_poisons() -> None:
    """A bias that batch_norm takes out again still makes NaN of a channel if it is NaN."""
    problem = replace(Problem.parse(FLAT), device="cuda:sm90")
    chain = Chain(conv_transpose(2, "bias"), batch_norm(training=True))
    found = lower.lowered(chain, fused(chain, problem))
    assert found.segments[0].after == (TileOp("poison", ("bias",)),)


def test_clamp_by_nan_is_nan() -> None:
    problem = replace(Problem.parse(FLAT), device="cuda:sm90")
    chain = Chain(conv_transpose(2), clamp(nan, 1))
    (step,) = lower.lowered(chain, fused(chain, problem)).segments[0].after
    assert step.op == "scale_number"
    assert step.numbers[0] != step.numbers[0]


LOG2E = 1 / log(2)


@pytest.mark.parametrize(
    ("then", "steps"),
    [
        ("sigmoid", f"scale_number {-LOG2E}, sigmoid"),
        ("scale 3, sigmoid", f"scale_number {-LOG2E * 3}, sigmoid"),
        ("scale b, sigmoid", f"scale b, scale_number {-LOG2E}, sigmoid"),
        ("scale 1e31, sigmoid", f"scale_number 1e+31, scale_number {-LOG2E}, sigmoid"),
        ("scale nan, sigmoid", f"scale_number nan, scale_number {-LOG2E}, sigmoid"),
        ("scale 3, scale 5", "scale_number 3.0, scale_number 5.0"),
        ("softmax, scale 3", "softmax *3.0"),
        ("softmax, scale 3, add b, scale 5, add b", "softmax *15.0, add b *5.0, add b"),
        ("softmax, add b, sigmoid", f"softmax *{-LOG2E}, add b *{-LOG2E}, sigmoid"),
        ("softmax, tanh, scale 3", "softmax, tanh, scale_number 3.0"),
        ("softmax, scale 1e29, scale 1e29", "softmax *1e+29, scale_number 1e+29"),
        (
            "softmax, scale 1e-29, add b, scale 1e29, scale 1e29",
            f"softmax *{1e-29 * 1e29}, add b *1e+29, scale_number 1e+29",
        ),
        ("add b, scale 3", "add b, scale_number 3.0"),
    ],
)
def test_numbers_move_where_they_cost_nothing(then: str, steps: str) -> None:
    """Into a softmax and what is added after it, and into the base of a sigmoid."""
    words = {
        "sigmoid": sigmoid(),
        "tanh": tanh(),
        "softmax": softmax("channels"),
        "add b": add("b"),
    }
    numbers = ("3", "5", "1e-29", "1e29", "1e31", "nan")
    words |= {f"scale {each}": scale(float(each)) for each in numbers} | {"scale b": scale("b")}
    chain = Chain(conv_transpose(2), *(words[each] for each in then.split(", ")))
    problem = Problem.parse("n1 ci2 co3 i4x4 k3 fp16 cuda:sm90")
    (found,) = lower.lowered(chain, fused(chain, problem)).segments
    assert ", ".join(map(described, found.after)) == steps


def described(step: TileOp) -> str:
    factor = [f"*{step.factor}"] if step.factor != 1 else []
    return " ".join([step.op, *map(str, step.tensors), *map(str, step.numbers), *factor])


def test_groups_and_channel_stages_are_two_passes() -> None:
    """A tile holds channels of one group only, so a softmax over all of them comes after a cut."""
    problem = replace(Problem.parse("n1 ci4 co6 i5 k3 g2"), device="cuda:sm90")
    chain = Chain(conv_transpose(1), scale(2), softmax("channels"))
    found = lower.lowered(chain, fused(chain, problem))
    assert summary(found) == ["convolve scale_number store", "finish softmax store"]


def test_arguments_know_where_they_begin() -> None:
    arguments = OpArguments()
    steps = (
        TileOp("add", ("a",)),
        TileOp("clamp", numbers=(0.1, pi)),
        TileOp("batch_apply", ((0, 0), (0, 1))),
    )
    table = arguments.table(steps)
    assert table.ops == ("add", "clamp", "batch_apply")
    assert table.at == (0, 0, 1)
    assert arguments.tensors == ["a", (0, 0), (0, 1)]
    assert arguments.numbers == [*thirds(0.1), *thirds(pi)]
    assert arguments.table((TileOp("scale", ("b",)), TileOp("add_number", numbers=(2,)))).at == (
        3,
        6,
    )


@pytest.mark.parametrize("number", [0.0, 1.0, 0.1, -pi, 1e-20, 1e30, float("inf"), -float("inf")])
def test_three_float32_are_a_float64(number: float) -> None:
    assert sum(thirds(number)) == number


def test_group_norm_that_no_tile_holds() -> None:
    problem = replace(Problem.parse("n1 ci4 co512 i99x99 k3"), device="cuda:sm90")
    chain = Chain(conv_transpose(2), batch_norm(training=True), group_norm(2), add("a"))
    assert Triton().verdict(chain, problem).ok
    assert len(lower.lowered(chain, fused(chain, problem)).segments) == 3
