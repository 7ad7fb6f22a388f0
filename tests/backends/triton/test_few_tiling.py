"""Tiles of few output channels: what they are counted to take, and where they serve."""

from dataclasses import replace
from itertools import product

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import versus_cudnn
from transfuse.backends.triton.engines.few import few_tiling
from transfuse.backends.triton.engines.few.few_tiling import FewTiling, FewWork
from transfuse.problem import Problem

PROCESSORS = 132
FSRCNN = "n16 ci56 co1 i256x256 k9 s4 p4 op3"
# Measured on an H200, in microseconds: the engines with tensor cores, and tiles of this one by the
# anchors of a thread and the channels of a step.
Times = dict[tuple[int, int], float]
SERVED: list[tuple[str, float, Times]] = [
    (f"{FSRCNN} tf32", 2670, {(4, 1): 456, (2, 2): 537}),
    (f"{FSRCNN} fp16", 1321, {(4, 1): 464, (2, 2): 595}),
    ("n16 ci64 co3 i128x128 k4 s2 p1 tf32", 165, {(2, 4): 95, (4, 1): 113}),
    ("n8 ci64 co3 i256x256 k5 s2 p2 op1 tf32", 419, {(4, 1): 245, (2, 2): 300}),
    ("n4 ci16 co1 i512x512 k1 tf32", 129, {(4, 4): 27, (8, 4): 32}),
    ("n16 ci32 co1 i8192 k7 s1 p3 tf32", 36, {(2, 4): 20, (8, 4): 32}),
    ("n2 ci32 co2 i48x48x48 k3 s2 p1 op1 tf32", 138, {(4, 1): 70, (2, 4): 70}),
]
LEFT: list[tuple[str, float, Times]] = [
    ("n16 ci64 co3 i128x128 k4 s2 p1 fp16", 91, {(4, 1): 110}),
    ("n8 ci64 co3 i256x256 k3 s2 p1 op1 fp16", 130, {(4, 1): 143}),
    ("n8 ci64 co3 i256x256 k7 s1 p3 tf32", 557, {(2, 1): 780, (1, 1): 1518}),
    ("n16 ci64 co2 i4096 k16 s8 p4 fp16", 24, {(2, 4): 34}),
    ("n1 ci56 co1 i96x96 k9 s4 p4 op3 tf32", 45, {(2, 1): 41, (1, 4): 55}),
    ("n1 ci64 co3 i64x64 k4 s2 p1 fp16", 17, {(1, 4): 32, (1, 1): 52}),
]
# As fast either way: no more than what the times were fitted to.
EITHER: list[tuple[str, float, Times]] = [
    ("n8 ci32 co1 i256x256 k3 s1 p1 fp16", 79, {(4, 4): 62, (8, 2): 88}),
    ("n8 ci64 co2 i256x256 k2 s2 fp16", 78, {(4, 4): 75}),
]


def parsed(line: str) -> Problem:
    return Problem.parse(f"{line} cuda:sm90")


def least(problem: Problem) -> float:
    tiles = next(few_tiling.space(problem, PROCESSORS))
    return few_tiling.seconds(problem, tiles, PROCESSORS)


@pytest.mark.parametrize(("line", "theirs", "ours"), SERVED)
def test_it_serves_where_it_was_clearly_faster(line: str, theirs: float, ours: Times) -> None:
    assert min(ours.values()) < few_tiling.MARGIN * theirs
    assert few_tiling.expected(parsed(line)) is not None


@pytest.mark.parametrize(("line", "theirs", "ours"), LEFT)
def test_it_leaves_what_it_was_no_faster_at(line: str, theirs: float, ours: Times) -> None:
    assert min(ours.values()) > few_tiling.MARGIN * theirs
    assert few_tiling.expected(parsed(line)) is None


@pytest.mark.parametrize(("line", "theirs", "ours"), [*SERVED, *LEFT, *EITHER])
def test_what_is_counted_is_about_what_was_measured(line: str, theirs: float, ours: Times) -> None:
    """Within a factor of one and a half; of launches of a few microseconds, theirs is too low."""
    problem = parsed(line)
    for tiles, measured in ours.items():
        counted = 1e6 * few_tiling.seconds(problem, FewTiling(*tiles), PROCESSORS)
        assert 2 / 3 < counted / measured < 3 / 2, (tiles, counted)
    assert few_tiling.with_tensor_cores(problem) < 1.5e-6 * theirs


@pytest.mark.parametrize("line", [SERVED[0][0], SERVED[1][0], SERVED[3][0]])
def test_many_products_have_steps_of_one_channel(line: str) -> None:
    assert next(few_tiling.space(parsed(line), PROCESSORS)) == FewTiling(4, 1)


@pytest.mark.parametrize("line", [SERVED[2][0], *(each for each, *_ in SERVED[4:])])
def test_few_products_have_steps_of_many_channels(line: str) -> None:
    """Which take a step's time once."""
    assert next(few_tiling.space(parsed(line), PROCESSORS)).together == 4


def test_taps_of_stride_1_are_no_rows() -> None:
    """Three of them are no one product, whose 64 rows these phases would fill."""
    line = "n8 ci512 co4 i64x64 k16x{} s16x1 tf32"
    one, three = (few_tiling.with_tensor_cores(parsed(line.format(k))) for k in (1, 3))
    assert three > 3 * one


@pytest.mark.parametrize(
    ("line", "larger"),
    [(line, each) for line, *_ in (*SERVED, *LEFT) for each in ("batch", "size", "ins", "outs")],
)
def test_a_larger_layer_never_takes_less(line: str, larger: str) -> None:
    """Twice the channels, since those of a step divide them."""
    problem = parsed(line)
    ours = theirs = 0.0
    for _ in range(4):
        if few_tiling.verdict(problem):
            break
        ours, before = least(problem), ours
        theirs, others = few_tiling.with_tensor_cores(problem), theirs
        assert ours >= before, str(problem)
        assert theirs >= others, str(problem)
        n, ci, *size = problem.input.dims
        if larger == "batch":
            problem = replace(problem, batch=n + 3)
        elif larger == "size":
            problem = replace(problem, spatial=(*size[:-1], size[-1] + 7))
        elif larger == "ins":
            problem = replace(problem, in_channels=2 * ci)
        else:
            problem = replace(problem, out_channels=problem.out_channels + 1)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_tiles_suit_their_work(dtype: str) -> None:
    """Registers and code are bounded, channels divided, and the first tiles take the least."""
    for ci, co, rest in product((3, 6, 64), (1, 3), ("k1", "k7", "k9 s4", "k4 s2 p1")):
        problem = parsed(f"n2 ci{ci} co{co} i64x64 {rest} {dtype}")
        if few_tiling.verdict(problem):
            continue
        work, found = FewWork.of(problem), [*few_tiling.space(problem, PROCESSORS)]
        assert found
        for each in found:
            assert each.held * work.sums * work.words <= few_tiling.SUMS
            assert each.together * work.products <= few_tiling.CODE
            assert ci % each.together == 0
        costs = [few_tiling.seconds(problem, each, PROCESSORS) for each in found]
        assert costs == sorted(costs)


@pytest.mark.parametrize("mode", ["tf32", "fp16"])
def test_a_plain_layer_is_weighed_by_what_this_engine_takes(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by what was measured of others; but where channels are innermost, by that alone."""
    here, last = parsed(f"{FSRCNN} {mode}"), parsed(f"{FSRCNN} {mode} channels_last")
    assert versus_cudnn.slower(here, bias=False) == ""
    judged = versus_cudnn.slower(last, bias=False)
    monkeypatch.setattr(few_tiling, "expected", lambda problem: None)
    assert versus_cudnn.slower(last, bias=False) == judged
    assert versus_cudnn.slower(here, bias=False) or mode == "fp16"
    assert few_tiling.verdict(replace(here, out_channels=17))
