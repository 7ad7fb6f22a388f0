"""The GPU's convolution against its definition, in Triton's interpreter: every form of tile.

Small integers: every sum is exact and rounded once, so results are compared bit for bit. Tiles are
the smallest there are: a handful of positions and channels crosses every border.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import DTYPES, Problem
from transfuse.reference import scatter
from transfuse.stages import conv_transpose, softmax

TILES: dict[str, tuple[Any, ...]] = {
    "rows": ("rows", (1, 1, 1, 16), 8),
    "box": ("box", (1, 2, 2, 4), 8),
    "batch": ("batch", (1, 2, 2, 2), 8),
    "lone": ("batch", (1, 1, 1, 2), 8),
}
# One thing that tiles, classes and copies may get wrong in each line.
LINES = [
    # ranks, strides and padding; batches of 1, 2, 3
    "n1 ci3 co4 i9 k3 p1",
    "n3 ci2 co5 i7 k4 s2 p1",
    "n2 ci3 co5 i4x5 k3 s2 p1",
    "n2 ci3 co4 i3x4 k3x5 p0x2",
    "n1 ci2 co3 i2x3x4 k3x2x1 s2x1x3",
    "n2 ci2 co3 i2x3x2 k2 p1",
    # the smallest there is, kernels of one tap, one output
    "n1 ci1 co1 i1 k1",
    "n3 ci5 co6 i3x4 k1",
    "n2 ci3 co5 i1x2 k5x4 p2x2",
    # width classes that are joined (1, 2, 4, 8) and those that are not
    "n2 ci2 co3 i5 k4 s4 p1 op1",
    "n1 ci2 co3 i2x3 k3x9 s1x8 p1x2 op0x5",
    "n2 ci2 co3 i3x4 k3x4 s2x3 p1x0",
    "n1 ci2 co2 i3 k7 s5 p2",
    "n1 ci2 co2 i2x2 k2x3 s1x16 op0x15",
    # phases without a tap
    "n2 ci3 co4 i4 k1 s3 op2",
    "n1 ci2 co3 i2x3 k1x2 s2x4",
    # dilation, alone, with a stride that it shares a factor with, with one that it does not
    "n1 ci3 co4 i6 k3 d2 p2",
    "n2 ci2 co3 i4x3 k3x2 s2x3 d3x2 p2x1 op2x1",
    "n1 ci2 co3 i5 k4 s2 d2 p3 op1",
    "n1 ci2 co3 i3x2 k3 s4x6 d2x4 p1 op0x5",
    "n1 ci2 co2 i2x3x2 k2 s1x2x3 d3x2x1 op0x1x0",
    # output padding as far as it goes, padding that crops whole taps away
    "n1 ci2 co3 i3x2 k2 s3 op2",
    "n1 ci2 co3 i3x4 k2x3 s2 p2x3",
    # channels: blocks of 4 with rests, several blocks of the sum
    "n1 ci9 co9 i3x3 k2",
    "n2 ci4 co8 i4 k3",
    "n1 ci17 co3 i2x2x2 k2 s2",
    # groups, also with rests; one output channel from several
    "n2 ci6 co4 i3x4 k3 s2 p1 g2",
    "n1 ci6 co15 i5 k3 p1 g3",
    "n1 ci6 co3 i2x3 k2 g3",
    "n1 ci10 co12 i2x2x2 k2 s2 g2",
    # one input channel in each group: no sum over channels
    "n2 ci3 co3 i4x5 k3 s2 p1 g3",
    "n1 ci5 co10 i7 k4 s3 d2 p2 op1 g5",
    "n2 ci1 co6 i3x4 k3 p1",
    "n1 ci2 co2 i2x3x2 k3x2x1 s1x2x1 g2",
]
# Groups of one channel have one form. The others take two in turn; a lone position makes many
# tiles, so that one is for small results.
LONE = [
    "n3 ci3 co5 i3 k3 s2 p1",
    "n2 ci2 co3 i2x2 k3 p1",
    "n1 ci2 co9 i2 k2 s2 d3 op1",
    "n3 ci4 co4 i2 k4 d2 g2",
    "n1 ci2 co3 i1x2x2 k2",
]


def cases() -> Iterator[Any]:
    for i, line in enumerate([*LINES, *LONE]):
        problem = Problem.parse(f"{line} {DTYPES[i % 4]}")
        forms = ("rows", "box", "batch")[i % 3], ("rows", "box", "batch")[(i + 1) % 3]
        if problem.groups == problem.in_channels:
            forms = ("rows",)
        for form in ("lone",) if line in LONE else forms:
            yield pytest.param(problem, form, id=f"{problem} {form}")


CASES = list(cases())
SPECIAL = CASES[::2]


def plain(problem: Problem) -> Chain:
    return Chain(conv_transpose(problem.rank, "b"))


def integers(problem: Problem, seed: int = 0) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Input, weights and bias, integers around 0."""
    generator = torch.Generator().manual_seed(seed)
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    dtype = ELEMENTS[problem.dtype].dtype
    x, w, b = (torch.randint(-3, 4, s, generator=generator).to(dtype) for s in shapes)
    return x, w, {"b": b}


def poisoned(problem: Problem) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Integers with one or two NaN and Inf in the input, in the weights, or in both."""
    x, w, operands = integers(problem)
    random = Random(str(problem))
    for tensor in random.choice(((x,), (w,), (w,), (x, w))):
        flat = tensor.view(-1)
        for _ in range(random.randint(1, 2)):
            flat[random.randrange(flat.numel())] = random.choice((torch.nan, torch.inf, -torch.inf))
    return x, w, operands


def defined(problem: Problem, x: Tensor, w: Tensor, operands: dict[str, Tensor]) -> Tensor:
    """The definition in float64, rounded once."""
    return scatter(problem, x.double(), w.double(), operands["b"].double()).to(x.dtype)


def same(y: Tensor, exact: Tensor) -> bool:
    """Bit for bit, but for the bits of a NaN and the sign of a zero."""
    return bool(((y == exact) | (y.isnan() & exact.isnan())).all())


@pytest.mark.parametrize(("problem", "form"), CASES)
def test_integers_bit_for_bit(problem: Problem, form: str, interpreter: Any) -> None:
    tensors = integers(problem)
    answer = interpreter(plain(problem), problem, *tensors, tiles=TILES[form])
    assert same(answer["results"][0], defined(problem, *tensors)), answer["launches"]
    found = {launch["form"] for launch in answer["launches"] if launch["kernel"] == "convolve"}
    one_channel = problem.groups == problem.in_channels
    assert found == {"rows" if one_channel else TILES[form][0]}


@pytest.mark.long
@pytest.mark.parametrize(("problem", "form"), SPECIAL)
def test_nan_and_inf_reach_what_they_touch(problem: Problem, form: str, interpreter: Any) -> None:
    tensors = poisoned(problem)
    answer = interpreter(plain(problem), problem, *tensors, tiles=TILES[form])
    assert same(answer["results"][0], defined(problem, *tensors)), answer["launches"]


def test_most_of_the_special_results_are_finite() -> None:
    """A NaN everywhere would be right everywhere; one nowhere would prove nothing."""
    problems = [case.values[0] for case in SPECIAL]
    exact = [defined(problem, *poisoned(problem)).isfinite() for problem in problems]
    assert sum(not each.all() for each in exact) > 0.9 * len(exact)
    assert torch.cat([each.flatten() for each in exact]).double().mean() > 0.5
    assert any(not poisoned(problem)[1].isfinite().all() for problem in problems)


def test_careful_launch_is_taken_once(interpreter: Any) -> None:
    """The flag of a call with NaN weights is not that of the call after it."""
    problem = Problem.parse("n1 ci2 co3 i4x3 k3 p1")
    x, w, operands = integers(problem)
    bad = w.clone()
    bad[0, 0, 0, 0] = torch.nan
    for weight in (bad, w, bad, w):
        answer = interpreter(plain(problem), problem, x, weight, operands, tiles=TILES["box"])
        assert same(answer["results"][0], defined(problem, x, weight, operands))


def test_tiles_run_on_from_sample_to_sample(interpreter: Any) -> None:
    """5 + halo positions of a sample in tiles of 16: five samples in two tiles, not five."""
    problem = Problem.parse("n5 ci3 co4 i5 k2 s2")
    tensors = integers(problem)
    answer = interpreter(plain(problem), problem, *tensors, tiles=TILES["rows"])
    assert [each["cross"] for each in answer["launches"] if each["kernel"] == "convolve"] == [True]
    assert answer["launches"][1]["programs"] == 2
    assert same(answer["results"][0], defined(problem, *tensors))


def test_boxes_that_are_whole_and_others(interpreter: Any) -> None:
    """Neighbours are stored together; of the last line of boxes there is only a half."""
    problem = Problem.parse("n2 ci3 co8 i5x8 k3 p1")
    tensors = integers(problem)
    answer = interpreter(plain(problem), problem, *tensors, tiles=TILES["box"])
    assert [each["even"] for each in answer["launches"] if each["kernel"] == "convolve"] == [True]
    assert same(answer["results"][0], defined(problem, *tensors))


def test_every_form_is_met(interpreter: Any) -> None:
    """What the lines above exercise, counted: none of it may get lost."""
    met: Counter[Any] = Counter()
    for line, form in (
        ("n5 ci3 co4 i5 k2 s2", "rows"),
        ("n1 ci3 co4 i4x4 k1", "rows"),
        ("n1 ci3 co4 i3 k8 s8", "rows"),
        ("n3 ci3 co4 i3 k4 s4", "box"),
        ("n2 ci3 co4 i2 k2 s1", "lone"),
        ("n3 ci3 co3 i4 k3 s2 g3", "rows"),
    ):
        problem = Problem.parse(line)
        answer = interpreter(plain(problem), problem, *integers(problem), tiles=TILES[form])
        for launch in answer["launches"]:
            met.update(launch.items() - {("programs", launch["programs"])})
    for key, values in {
        "cross": (True, False),
        "lone": (True, False),
        "joined": (1, 2, 4, 8),
        "even": (True, False),
        "depthwise": (True, False),
        "kernel": ("pack", "convolve", "convolve_carefully"),
    }.items():
        for value in values:
            assert met[key, value], f"{key} = {value}"


# ---- memory ----------------------------------------------------------------------------------


def laid(t: Tensor, layout: str) -> Tensor:
    """The same values, in memory another way."""
    n, c, *space = t.shape
    if layout == "channels last":
        return t.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "batch last":
        return t.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "axes reversed":
        axes = (0, 1, *reversed(range(2, t.dim())))
        return t.permute(axes).contiguous().permute(axes)
    if layout == "every other":
        wide = t.new_zeros(2 * n, 2 * c, *(2 * m for m in space))
        return wide[(slice(None, None, 2),) * t.dim()].copy_(t)
    assert layout == "a slice"
    wide = t.new_zeros(n + 3, c + 1, *(m + 3 for m in space))
    return wide[tuple(slice(1, m + 1) for m in t.shape)].copy_(t)


@pytest.mark.parametrize(
    "layout", ["channels last", "a slice", "every other", "batch last", "axes reversed"]
)
@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("n2 ci3 co5 i4x5 k3 s2 p1", "rows"),
        ("n2 ci3 co5 i4x3 k3x2 p1x0 fp16", "box"),
        ("n3 ci2 co4 i2x3 k3 s2 fp64", "batch"),
        ("n2 ci3 co3 i3x2x2 k2 s2 g3", "rows"),
    ],
)
def test_layouts(line: str, form: str, layout: str, interpreter: Any) -> None:
    """Input, weights and output lie in another way."""
    problem = Problem.parse(line)
    x, w, operands = integers(problem)
    right = defined(problem, x, w, operands)
    tensors, strides = (laid(x, layout), laid(w, layout)), laid(right, layout).stride()
    assert not tensors[0].is_contiguous()
    answer = interpreter(
        plain(problem), problem, *tensors, operands, tiles=TILES[form], strides=strides
    )
    assert same(answer["results"][0], right)


@pytest.mark.parametrize("broadcast", [(0,), (1,), (2, 3), (0, 1, 2, 3)])
def test_inputs_that_repeat_themselves(broadcast: tuple[int, ...], interpreter: Any) -> None:
    """Strides of 0."""
    problem = Problem.parse("n2 ci3 co4 i3x4 k2 s2")
    x, w, operands = integers(problem)
    x = x[tuple(slice(0, 1) if axis in broadcast else slice(None) for axis in range(4))]
    x = x.expand(problem.input.dims)
    answer = interpreter(plain(problem), problem, x, w, operands, tiles=TILES["rows"])
    assert same(answer["results"][0], defined(problem, x.contiguous(), w, operands))


def test_empty_batch(interpreter: Any) -> None:
    problem = Problem.parse("n0 ci3 co4 i3x4 k2 s2")
    answer = interpreter(plain(problem), problem, *integers(problem))
    assert answer["results"][0].shape == (0, 4, 6, 8)


def test_empty_batch_with_a_statistic_of_each_sample(interpreter: Any) -> None:
    """No sample shares out the tiles."""
    problem = Problem.parse("n0 ci3 co4 i3x4 k2 s2")
    chain = Chain(conv_transpose(2), softmax("space"))
    x, w, _ = integers(problem)
    assert interpreter(chain, problem, x, w, {})["results"][0].shape == (0, 4, 6, 8)


# ---- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sixteen_bits_round_once_to_nearest_even(dtype: str, interpreter: Any) -> None:
    """Values of every size times a weight: exact in float32, rounded as torch rounds.

    Those too small to be normal are left out: the interpreter has its own way with them.
    """
    element = ELEMENTS[dtype]
    every = torch.arange(-(2**15), 2**15, 7).to(torch.int16).view(element.dtype)
    every = every[(every.abs() > 4 * torch.finfo(element.dtype).tiny) | every.isnan()]
    w = torch.tensor([1, 1.5, -0.375, 1 / 3]).to(element.dtype)
    problem = Problem.parse(f"n1 ci1 co{w.numel()} i{every.numel()} k1 {dtype}")
    x, operands = every.view(problem.input.dims), {"b": torch.zeros_like(w)}
    big = ("rows", (1, 1, 1, 2048), 4)
    y = interpreter(plain(problem), problem, x, w.view(problem.weight), operands, tiles=big)
    right = (every.float() * w.float()[:, None]).to(element.dtype)
    torch.testing.assert_close(y["results"][0][0], right, rtol=0, atol=0, equal_nan=True)


def test_tf32_rounds_to_nearest(interpreter: Any) -> None:
    """Ten bits of input and weights, by half to nearest; the hardware would cut them off."""
    problem = Problem.parse("n2 ci5 co6 i4x5 k3 s2 fp32 tf32 cuda:sm90")
    generator = torch.Generator().manual_seed(0)
    shapes = problem.input.dims, problem.weight, (6,)
    x, w, b = (torch.randn(s, generator=generator) for s in shapes)
    x.view(-1)[:4] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 1 + 2**-11 - 2**-20])
    answer = interpreter(plain(problem), problem, x, w, {"b": b}, tiles=TILES["rows"])

    def rounded(t: Tensor) -> Tensor:
        mantissa, exponent = t.double().frexp()
        away = (mantissa.abs() * 2**11 + 0.5).floor() * 2.0**-11
        return away.copysign(mantissa) * 2.0**exponent

    right = scatter(problem, rounded(x), rounded(w), b.double())
    cut = scatter(problem, x.double(), w.double(), b.double())
    y = answer["results"][0].double()
    assert (y - right).abs().max() < 2e-6
    assert (y - cut).abs().max() > 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", TILES)
def test_real_numbers_twice(form: str, dtype: str, interpreter: Any) -> None:
    """Within the oracle's budget, and the same bits again."""
    problem = Problem.parse(f"n2 ci9 co5 i3x2 k2 s1x2 p0x1 {dtype}")
    interpreter.right(plain(problem), problem, tiles=TILES[form], times=2)
