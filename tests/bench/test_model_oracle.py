"""A whole model in float64 is the truth: rounding passes, in every model, and little else does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from transfuse.bench import whole
from transfuse.bench.model_oracle import ModelOracle, results
from transfuse.bench.models import MODELS
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.whole import Whole

FP32 = PRECISIONS["fp32"]
QUICK = ("dcgan", "encodec", "sam")
SOME = [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in MODELS]
"""Most of the models in float64 take a few seconds each."""


def posed(name, training=False, precision=FP32):
    model = MODELS[name]
    subject = Whole(name, model.small, model.tiny)
    work, counted = whole.work(subject, precision, "cpu", 0, training)
    assert counted.flops > 0 < counted.bytes
    return work, whole.oracle(work, precision)


def run(work, model):
    runner = work.runner(model, model)
    return runner.collect(runner.run(runner.adapt(work.x)))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", SOME)
def test_the_model_in_float32_passes_and_in_bfloat16_does_not(name, training):
    with torch.no_grad():
        work, oracle = posed(name, training)
        judged = oracle.judge(run(work, work.model))
        assert judged.ok, judged
        assert judged.used > 0
        coarse = work.make()
        for each in coarse.parameters():
            each.copy_(each.bfloat16())
        assert not oracle.judge(run(work, coarse)).ok


@pytest.mark.parametrize("precision", ["fp64", "bf16", "fp16"])
def test_other_types(precision):
    with torch.no_grad():
        work, oracle = posed("dcgan", True, PRECISIONS[precision])
        judged = oracle.judge(run(work, work.model))
    assert judged.ok, judged


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_the_judge_sees_a_layer_that_does_something_else(training):
    with torch.no_grad():
        work, oracle = posed("vae", training)
        other = work.make()
        other.decoder[1][2].negative_slope = 0.02
        judged = oracle.judge(run(work, other))
    assert not judged.ok
    assert "times its budget" in judged.fault


class BiasBeforeNorm(nn.Module):
    """The bias has no effect: its gradient is 0, and in any arithmetic a sum that cancels."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 8, 4, 2, 1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.tanh(self.norm(self.up(x)))


def test_a_gradient_that_cancels_may_have_its_rounding():
    torch.manual_seed(0)
    model, x = BiasBeforeNorm(), torch.randn(4, 4, 9, 9)
    twin = BiasBeforeNorm()
    twin.load_state_dict(model.state_dict())
    y = model(x)
    cotangents = [torch.randn(y.shape)]
    oracle = ModelOracle(twin.double(), [x], "fp32", FP32.ulp, cotangents)
    x.requires_grad_()
    found = torch.autograd.grad(model(x), [x, *model.parameters()], cotangents)
    assert found[2].abs().max() > 1e-7
    assert oracle.judge(found).ok
    wrong = [*found[:2], found[2] + 0.1, *found[3:]]
    assert not oracle.judge(wrong).ok


class Several(nn.Module):
    """Results in a dictionary, one of them unused by the other, and a parameter without use."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 3, 2, 2)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = self.up(x)
        return {"y": y, "peak": (F.relu(y), y.amax())}


def test_results_of_any_form_and_parameters_without_use():
    x = torch.randn(2, 2, 5)
    model = Several()
    assert [tuple(each.shape) for each in results(model(x))] == [(2, 3, 10), (2, 3, 10), ()]
    work, _ = whole.work(Whole("s", Several, ((2, 2, 5),)), FP32, "cpu", 0, True)
    found = dict(
        zip(["x", *dict(work.model.named_parameters())], run(work, work.model), strict=True)
    )
    assert not found["spare"].any()
    assert found["up.weight"].any()
    assert whole.oracle(work, FP32).judge(run(work, work.model)).ok
