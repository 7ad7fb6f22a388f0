"""Plans: what each pass costs, where a chain is cut, and that nothing but integers is looked at."""

from itertools import product
from math import prod

import pytest

from transfuse.chain import Chain
from transfuse.operators import OPERATORS, operator
from transfuse.plan import MACHINES, Pass, Plan, figure, fused, machine, staged
from transfuse.problem import Problem
from transfuse.stages import (
    Stage,
    avg_pool,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum

# The benchmark sizes: GFLOP and MB that no plan goes below, passes of the fused one.
BENCHMARKS = {
    "conv-transpose-2d-square-input-asym-kernel": (360.8, 1083, 1),
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": (136.4, 1225, 1),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (55.6, 1611, 3),
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": (209.4, 211, 2),
    "conv-transpose3d-max-max-sum": (216.8, 68, 1),
}


def benchmark(slug: str, device: str = "tf32 cuda:sm90") -> Plan:
    case = operator(slug).case(f"benchmark {device}")
    return fused(operator(slug).bound(case), case.problem)


def plan(line: str, *stages: Stage) -> Plan:
    return fused(Chain(*stages), Problem.parse(line))


def names(plan: Plan) -> list[str]:
    return [each.does for each in plan.passes]


def test_every_operator_has_a_row() -> None:
    assert BENCHMARKS.keys() == OPERATORS.keys()


@pytest.mark.parametrize("slug", BENCHMARKS)
def test_benchmark_floors(slug: str) -> None:
    gflop, megabytes, _ = BENCHMARKS[slug]
    got = benchmark(slug)
    assert got.work / 1e9 == pytest.approx(gflop, rel=0.01)
    assert got.least / 1e6 == pytest.approx(megabytes, rel=0.01)


@pytest.mark.parametrize("slug", BENCHMARKS)
def test_benchmark_passes(slug: str) -> None:
    got = benchmark(slug)
    assert len(got.passes) == BENCHMARKS[slug][2]
    assert got.flops >= got.work
    assert got.bytes >= got.passes[-1].writes > 0


@pytest.mark.parametrize("slug", [slug for slug, row in BENCHMARKS.items() if row[2] == 1])
def test_one_pass_costs_the_least(slug: str) -> None:
    got = benchmark(slug)
    assert got.flops == got.work
    assert got.bytes == got.least
    assert got.scratch == 0


def test_avgpool_recomputes_on_a_gpu() -> None:
    got = benchmark("conv-transpose3d-avgpool-clamp-softmax-multiply")
    pool, gather, write = got.passes
    assert pool.flops == 0
    assert gather.flops == write.flops == got.work
    assert "keep only the statistic" in gather.does
    assert gather.writes == 0
    assert write.writes == 4 * got.chain.shapes(got.problem)[-1].numel
    assert got.scratch == pool.writes


def test_ieee_float32_stores_what_tf32_recomputes() -> None:
    """55.6 GFLOP again take 0.156 ms in tf32 and 1.09 ms in ieee; storing takes 0.502 ms."""
    slug = "conv-transpose3d-avgpool-clamp-softmax-multiply"
    assert benchmark(slug, "tf32 cuda:sm90").recomputed
    assert not benchmark(slug, "fp32 cuda:sm90").recomputed


def test_a_slow_machine_stores_what_a_fast_one_recomputes() -> None:
    slug = "conv-transpose3d-avgpool-clamp-softmax-multiply"
    got = benchmark(slug, device="cpu")
    assert got.flops == got.work
    assert got.bytes > benchmark(slug).bytes


@pytest.mark.parametrize(
    ("line", "recomputes"),
    [
        ("n8 ci4 co16 i64x64 k1 cuda:sm90", True),
        ("n8 ci512 co16 i64x64 k5 p2 cuda:sm90", False),
    ],
)
def test_stores_where_recomputing_is_dearer(line: str, recomputes: bool) -> None:
    got = plan(line, conv_transpose(2), sigmoid(), softmax("space"))
    first, second = got.passes
    values = 4 * got.problem.output().numel
    assert first.writes == got.scratch == (0 if recomputes else values)
    assert second.flops == (got.work if recomputes else 0)
    assert second.reads == (first.reads if recomputes else values)
    # The dearer way, by the rates of the machine: the choice is the cheaper one.
    gpu = MACHINES["cuda"]
    again, store = gpu.seconds("fp32", got.work, first.reads), gpu.seconds("fp32", 0, 2 * values)
    assert (again < store) == recomputes


def test_the_choice_turns_with_the_number_of_channels() -> None:
    """More input channels cost work alone, so there is one point where storing takes over."""
    line = "n1 ci{} co64 i128x128 k3 p1 bf16 cuda:sm90"
    passes = [
        plan(line.format(ci), conv_transpose(2), softmax("space")).passes for ci in range(1, 200, 3)
    ]
    stores = [first.writes > 0 for first, _ in passes]
    assert stores == sorted(stores)
    assert set(stores) == {False, True}


@pytest.mark.parametrize(
    ("line", "resident"),
    [
        ("n8 ci8 co16 i64x64 k3 p1 cuda:sm90", True),  # 8 * 32 * 32 values of 4 bytes: 33 kB
        ("n8 ci8 co16 i256x256 k3 p1 cuda:sm90", False),  # 8 * 128 * 128: 524 kB
    ],
)
def test_a_group_norm_that_fits_needs_no_pass_of_its_own(line: str, resident: bool) -> None:
    got = plan(
        line, conv_transpose(2), max_pool(2), batch_norm(training=True), tanh(), group_norm(2)
    )
    apply = "batch_norm(batch) · tanh · group_norm(2)"
    gather = "batch_norm(batch) · tanh · gather for group_norm(2) · keep only the statistic"
    assert names(got) == [
        "conv_transpose2d · max_pool(2) · gather for batch_norm(batch)",
        *([] if resident else [gather]),
        apply,
    ]
    held = 4 * 8 * prod(got.chain.shapes(got.problem)[2].spatial)
    assert (held <= machine("cuda:sm90").on_chip) == resident


def test_no_norm_is_resident_in_the_pass_of_the_convolution() -> None:
    got = plan("n1 ci2 co2 i4 k3 cuda:sm90", conv_transpose(1), group_norm(1))
    assert len(got.passes) == 2


def test_a_whole_stage_before_the_convolution_is_cut_too() -> None:
    small = plan("n8 ci4 co4 i16x16 k3 cuda:sm90", group_norm(2), conv_transpose(2))
    assert names(small) == ["group_norm(2)", "conv_transpose2d"]
    large = plan("n8 ci4 co4 i512x512 k3 cuda:sm90", tanh(), group_norm(2), conv_transpose(2))
    assert names(large) == [
        "tanh · gather for group_norm(2) · keep only the statistic",
        "tanh · group_norm(2)",
        "conv_transpose2d",
    ]


def test_scratch_is_what_two_neighbours_hold() -> None:
    """Three stores; the first is gone when the third is written."""
    line = "n2048 ci64 co64 i64x64 k5 p2 s2 cuda:sm90"
    got = plan(
        line,
        avg_pool(2),
        conv_transpose(2),
        softmax("space"),
        max_pool(8),
        batch_norm(training=True),
    )
    first, second, third, _ = (each.writes for each in got.passes)
    assert first > 0
    assert third > 0
    assert got.scratch == max(first + second, second + third)


def multiply_adds(problem: Problem, needed: tuple[int, ...]) -> int:
    """Every (sample, channel pair, output, input, tap) that meet, counted one by one."""
    met = [
        sum(
            i * axis.stride == o + axis.padding - k * axis.dilation
            for o, i, k in product(range(extent), range(axis.n), range(axis.k))
        )
        for axis, extent in zip(problem.axes, needed, strict=True)
    ]
    return problem.batch * problem.in_channels * problem.out_channels // problem.groups * prod(met)


# Problem, chain, size of the convolution's input, how many of its outputs matter.
WORK = [
    ("n2 ci3 co4 i7 k3 s2 p1", Chain(conv_transpose(1)), (7,), (13,)),
    ("n2 ci3 co4 i7 k3 s2 p1", Chain(conv_transpose(1), max_pool(2), max_pool(3)), (7,), (12,)),
    ("n1 ci4 co2 i5x6 k2x3 s1x2 g2", Chain(conv_transpose(2), max_pool(4)), (5, 6), (4, 12)),
    (
        "n1 ci4 co2 i5 k2 s1",
        Chain(conv_transpose(1), batch_norm(training=True), max_pool(4)),
        (5,),
        (6,),
    ),
    ("n3 ci2 co2 i9x5 k3 d1x2", Chain(avg_pool(2), conv_transpose(2)), (4, 2), (6, 6)),
    ("n1 ci2 co3 i3x2x4 k2 s3 op1x2x0", Chain(conv_transpose(3)), (3, 2, 4), (9, 7, 11)),
]


@pytest.mark.parametrize(
    ("line", "chain", "core", "needed"),
    [pytest.param(*row, id=f"{row[0]} {row[1]}") for row in WORK],
)
def test_work_is_every_multiply_add_that_reaches_the_result(
    line: str, chain: Chain, core: tuple[int, ...], needed: tuple[int, ...]
) -> None:
    problem = Problem.parse(line)
    work = 2 * multiply_adds(problem.at(core), needed)
    assert fused(chain, problem).work == staged(chain, problem, temporary=4).work == work
    full = chain.shapes(problem)[chain.at + 1].spatial
    assert staged(chain, problem, temporary=4).flops == 2 * multiply_adds(problem.at(core), full)


def test_least_is_every_tensor_once() -> None:
    line = "n2 ci4 co6 i9x9 k3 s2 p1 g2 bf16 cuda:sm90"
    got = plan(
        line,
        conv_transpose(2, "a"),
        batch_norm(weight="w", bias="b", training=True),
        max_pool(2),
        group_norm(3, "v"),
    )
    x, weight, y = 2 * 4 * 9 * 9, 4 * 3 * 3 * 3, 2 * 6 * 8 * 8
    operands = [name for name, _ in got.chain.dims(got.problem)]
    assert operands.count("w") == 2, "read by the pool and by the norm, yet one tensor"
    assert got.least == 2 * (x + weight + 3 * 6 + y)  # "a" is taken out by the batch norm


@pytest.mark.parametrize(
    ("dtype", "item", "between"), [("fp32", 4, 4), ("bf16", 2, 4), ("fp64", 8, 8)]
)
def test_what_lies_between_passes_has_the_type_of_the_arithmetic(
    dtype: str, item: int, between: int
) -> None:
    got = plan(f"n2 ci3 co4 i8 k3 p1 {dtype} cuda:sm90", avg_pool(2), conv_transpose(1))
    pool, conv = got.passes
    weight = item * 3 * 4 * 3
    assert (pool.reads, pool.writes) == (item * 2 * 3 * 8, between * 2 * 3 * 4)
    assert (conv.reads, conv.writes) == (pool.writes + weight, item * 2 * 4 * 4)


def test_staged_is_a_pass_for_every_stage() -> None:
    problem = Problem.parse("n2 ci4 co8 i9x9 k3 s2 p1 fp16")
    chain = Chain(
        avg_pool(2), conv_transpose(2, "b"), max_pool(2), channel_sum("channels", keepdim=True)
    )
    pooled, conv, small, channel = 2 * 4 * 4 * 4, 2 * 8 * 7 * 7, 2 * 8 * 3 * 3, 2 * 3 * 3
    weight, flops = 2 * 4 * 8 * 9, problem.at((4, 4)).flops()
    got = staged(chain, problem, temporary=4)
    assert got.passes == (
        Pass("avg_pool(2)", 0, 2 * 2 * 4 * 81, 4 * pooled),
        Pass("conv_transpose2d(+ b)", flops, 4 * pooled + weight + 2 * 8, 4 * conv),
        Pass("max_pool(2)", 0, 4 * conv, 4 * small),
        Pass("sum(channels, keepdim=True)", 0, 4 * small, 2 * channel),
    )
    assert got.scratch == 4 * (conv + small)
    assert got.chain == chain, "a framework rewrites nothing"


def test_a_rewrite_hides_nothing_that_a_stage_refuses() -> None:
    with pytest.raises(
        RuntimeError, match="kernel and stride must be at least 1, but got kernel=-2"
    ):
        plan("n1 ci1 co1 i20 k1", conv_transpose(1), max_pool(-2), max_pool(-3))
    with pytest.raises(
        RuntimeError, match="kernel and stride must be at least 1, but got kernel=0"
    ):
        plan("n1 ci1 co1 i20 k1", avg_pool(0), conv_transpose(1))


def figures(flops: int, *moved: int) -> list[str]:
    return [f"{flops / 1e9:.1f}", *(f"{count / 1e6:.1f}" for count in moved)]


def test_prints_problem_chain_passes_totals_and_floor() -> None:
    got = benchmark("conv-transpose3d-avgpool-clamp-softmax-multiply")
    lines = str(got).splitlines()
    assert lines[0] == str(got.problem)
    assert lines[1] == str(got.chain)
    assert lines[2].split() == ["pass", "GFLOP", "Gspecial", "MB", "read", "MB", "written"]
    for line, each in zip(lines[3:6], got.passes, strict=True):
        assert line.startswith(each.does)
        special = figure(each.special / 1e9)
        flops, *moved = figures(each.flops, each.reads, each.writes)
        assert line.split()[-4:] == [flops, special, *moved]
    reads, writes = sum(p.reads for p in got.passes), sum(p.writes for p in got.passes)
    flops, *moved = figures(got.flops, reads, writes)
    assert lines[6].split() == ["total", flops, figure(got.special / 1e9), *moved]
    assert lines[7] == (
        f"least possible: {got.work / 1e9:.1f} GFLOP, {got.least / 1e6:.0f} MB; "
        f"scratch of this plan: {got.scratch / 1e6:.1f} MB"
    )
    assert len({len(line) for line in lines[2:7]}) == 1, "columns line up"


@pytest.mark.parametrize("slug", BENCHMARKS)
def test_is_pure(slug: str) -> None:
    """The same plan twice, also for sizes and devices that this machine does not have."""
    assert benchmark(slug) == benchmark(slug)
    assert hash(benchmark(slug)) == hash(benchmark(slug))
    assert benchmark(slug, device="cuda:sm120").work == benchmark(slug).work


def test_unknown_devices_have_the_rates_of_a_cpu() -> None:
    assert machine("cuda:sm90") == machine("cuda:sm120") == MACHINES["cuda"]
    assert machine("cpu") == machine("xpu") == MACHINES["cpu"]
