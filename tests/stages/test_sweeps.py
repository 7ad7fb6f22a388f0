"""Every stage in the words of a walk: in float64 they give what its maths in torch gives."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse import stages as s
from transfuse.problem import Shape
from transfuse.stages import Stage
from transfuse.stages.batch_halves import BatchApply, BatchStatistics
from transfuse.stages.window import ExtremumPool

from .listener import swept

SPACE = {1: (11,), 2: (7, 9), 3: (5, 6, 7)}


def drawn(rank: int, draw: Random) -> Iterator[Stage]:
    """One of each stage, its arguments at random."""
    space = SPACE[rank]
    axes = tuple(draw.sample(range(1, rank + 2), draw.randint(1, rank + 1)))
    dim = draw.choice(["channels", "space", "all", axes, axes[0] - rank - 2])
    for reduce in (s.sum, s.mean, s.amax, s.amin, s.logsumexp):
        yield reduce(dim, keepdim=draw.random() < 0.5)
    yield s.softmax(dim)
    yield s.log_softmax(dim)
    kernel = tuple(draw.randint(1, 3) for _ in space)
    padding = tuple(draw.randint(0, k // 2) for k in kernel)
    stride, dilation = (tuple(draw.randint(1, 3) for _ in space) for _ in range(2))
    ceil = draw.random() < 0.5
    reaches = zip(space, kernel, dilation, strict=True)
    dilation = tuple(d if (k - 1) * d < n else 1 for n, k, d in reaches)
    yield s.max_pool(kernel, stride, padding, dilation, ceil)
    yield ExtremumPool(kernel, stride, padding, dilation, ceil, sign="w")
    divisor = draw.choice([None, draw.randint(1, 9)])
    yield s.avg_pool(kernel, stride, padding, ceil, draw.random() < 0.5, divisor)
    yield s.lp_pool(draw.choice([1, 2, 4]), kernel, stride, ceil)
    sizes = tuple(draw.choice([None, draw.randint(1, n + 3)]) for n in space)
    yield s.adaptive_avg_pool(sizes)
    yield s.adaptive_max_pool(sizes)
    weight, bias = draw.choice([None, "w"]), draw.choice([None, "b"])
    eps = draw.choice([1e-5, 0.5])
    trains = draw.random() < 0.5
    yield s.batch_norm("mean", "var", weight, bias, trains, 0.3, eps)
    yield s.batch_norm(None, None, weight, bias, True, 0.3, eps)
    yield s.group_norm(draw.choice([1, 2, 4, 8]), weight, bias, eps)
    yield s.instance_norm("mean", "var", weight, bias, trains, 0.3, eps)
    yield s.instance_norm(None, None, weight, bias, True, 0.3, eps)
    yield s.layer_norm("channels", weight, bias, eps)
    yield s.rms_norm("channels", weight, eps)
    last = (8, *space)[draw.randint(0, rank) :]
    weight, bias = weight and f"w{len(last)}", bias and f"b{len(last)}"
    yield s.layer_norm(last, weight, bias, eps)
    yield s.rms_norm(last, weight, draw.choice([None, eps]))
    yield s.flatten(draw.randint(1, rank + 1))
    yield s.squeeze(draw.randint(1, rank + 1))
    yield s.pixel_shuffle(draw.choice([1, 2]))
    yield s.cat("skip", draw.random() < 0.5)


def operands(rank: int, seed: int) -> dict[str, Tensor]:
    def values(*dims: int) -> Tensor:
        return torch.randn(dims, generator=generator, dtype=torch.float64)

    generator = torch.Generator().manual_seed(seed)
    dims = (8, *SPACE[rank])
    env = {"w": values(8), "b": values(8), "mean": values(8), "var": values(8).abs()}
    for count in range(1, rank + 2):
        env[f"w{count}"], env[f"b{count}"] = values(*dims[-count:]), values(*dims[-count:])
    return {**env, "x": values(2, *dims), "skip": values(2, 3, *SPACE[rank])}


CASES = [pytest.param(rank, seed, id=f"{rank}d-{seed}") for rank in (1, 2, 3) for seed in range(6)]


@pytest.mark.parametrize(("rank", "seed"), CASES)
def test_words_mean_what_torch_computes(rank: int, seed: int) -> None:
    env = operands(rank, seed)
    x = env.pop("x")
    shapes = {name: tuple(each.shape) for name, each in env.items()}
    shape = Shape(*x.shape[:2], tuple(x.shape[2:]))
    for stage in drawn(rank, Random(100 * rank + seed)):
        stage = stage.fitted(shapes, rank).typed(torch.float64)
        values = x.abs() if stage.name == "lp_pool" else x  # a root of a negative sum is NaN
        theirs: dict[str, Any] = dict(env)
        expected = stage.apply(values, theirs)
        got, ours = swept(stage, values, env)
        found = stage.shape(shape)
        assert tuple(got.shape) == found.dims, stage
        assert tuple(expected.shape) == stage.form(found.dims), stage
        message = f"{stage}: {{}}".format
        torch.testing.assert_close(
            got.reshape(expected.shape), expected, rtol=1e-11, atol=1e-12, msg=message
        )
        for name in env:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=0, msg=message)


def test_every_stage_is_drawn() -> None:
    names = {stage.name for stage in drawn(2, Random(0))}
    public = {name for name in s.__all__ if name.islower()}
    elements = {n for n in public if getattr(s, n).__module__ == "transfuse.stages.activations"}
    assert names | elements | {"conv_transpose", "pointwise"} == public | {"extremum_pool"}


def test_bounded_softmax() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    stage = s.softmax("space")
    bounded = type(stage)("space", bounded=True)
    torch.testing.assert_close(swept(bounded, x, {})[0], stage.apply(x, {}), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "stage", [s.conv_transpose(1), BatchStatistics("s"), BatchApply("s")], ids=str
)
def test_halves_and_the_convolution_have_no_sweep(stage: Stage) -> None:
    with pytest.raises(NotImplementedError):
        swept(stage, torch.zeros(1, 2, 3), {})
