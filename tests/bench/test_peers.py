"""Every peer gives the chain's result within the oracle's budget, or says why it does not."""

import importlib.util
import re
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from transfuse import maths, stages
from transfuse.accuracy import Oracle, longest_sum
from transfuse.bench import peers as package
from transfuse.bench.peers import Missing, Peer, Runner, Work, peers
from transfuse.bench.peers.base import library
from transfuse.bench.peers.jax_xla import STAGES, jitted
from transfuse.bench.peers.onnx_graph import EMITTERS, onnx_model
from transfuse.bench.peers.torch_eager import as_written
from transfuse.bench.precision import PRECISIONS
from transfuse.chain import Chain
from transfuse.fills import real
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.rewrite import rewritten
from transfuse.stages import (
    add,
    amax,
    amin,
    avg_pool,
    batch_norm,
    cat,
    clamp,
    conv_transpose,
    elu,
    flatten,
    gelu,
    group_norm,
    hardswish,
    hardtanh,
    instance_norm,
    log_softmax,
    logsigmoid,
    logsumexp,
    max_pool,
    mean,
    mish,
    norm,
    pointwise,
    prelu,
    reduce,
    scale,
    shape,
    sigmoid,
    softmax,
    squeeze,
    tanh,
    window,
)
from transfuse.stages import sum as sum_over
from transfuse.stages.batch_halves import BatchApply, BatchStatistics
from transfuse.stages.shape import PixelShuffle
from transfuse.stages.window import AdaptivePool, LpPool


class JaxAnywhere:
    """The maths of the JAX peer, which itself serves GPUs alone."""

    name = "JAX/XLA"

    def build(self, work: Work) -> Runner:
        return jitted(work)


ON_CPU: dict[str, Peer] = {
    **{name: each for name, each in peers().items() if not name.startswith(("torch.c", "cuDNN"))},
    "JAX/XLA": JaxAnywhere(),
}


@dataclass(frozen=True)
class Sample:
    """A bound chain and a problem line, run by every peer."""

    name: str
    chain: Chain
    line: str

    def work(self, precision: str = "fp32", device: str = "cpu") -> Work:
        chosen = PRECISIONS[precision]
        problem = replace(Problem.parse(self.line), dtype=chosen.dtype)
        x, weight, operands = real(self.chain, problem, seed=1)
        return Work(self.chain, replace(problem, device=device), chosen, x, weight, operands)


def of_operator(slug: str, name: str) -> Sample:
    case = OPERATORS[slug].case(name)
    return Sample(f"{slug} {name}", OPERATORS[slug].bound(case), str(case.problem))


def layer(line: str, bias: bool = True) -> Sample:
    rank = Problem.parse(line).rank
    return Sample(line, Chain(conv_transpose(rank, bias="bias" if bias else None)), line)


SMALL = [of_operator(slug, "small") for slug in OPERATORS]
waved = pointwise(lambda x: maths.rsqrt(abs(x) + 1) * maths.sin(x) + maths.expm1(-abs(x)))
chosen = pointwise(
    lambda x, low: maths.where(maths.either(x < low, maths.no(x <= 0.5)), x * 2, maths.cos(x))
)
SAMPLES = [
    *SMALL,
    Sample(
        "sums and a softmax over space and channels, flattened",
        Chain(conv_transpose(2), softmax("all"), log_softmax(2), mean("space"), flatten()),
        "n2 ci3 co4 i5x6 k3 s2",
    ),
    Sample(
        "the largest of each row, without its axis",
        Chain(conv_transpose(2), instance_norm(weight="w"), amax(-1)),
        "n2 ci3 co4 i5x6 k3 s2",
    ),
    Sample(
        "a skip beside the smallest and the log of the summed exponentials",
        Chain(conv_transpose(1), cat("skip", True, 3), logsumexp(2, True), amin(1), squeeze(1)),
        "n2 ci3 co4 i5 k3 s2",
    ),
    *(of_operator(slug, "ragged") for slug in OPERATORS),
    layer("n2 ci4 co6 i9 k4 s3 p1 d2 op2 g2"),
    layer("n1 ci3 co5 i6 k1 s4 op3"),  # most outputs have no tap
    layer("n1 ci3 co2 i7 k3 s1 p2 d2 op1", bias=False),  # output padding below the dilation
    layer("n2 ci4 co4 i5x6 k3 s2x1 p1x0 op1x0 g4"),
    layer("n1 ci2 co3 i7x6 k1x3 s2x3 p1x0"),  # padding past the kernel's reach
    layer("n1 ci4 co6 i3x4x5 k3x2x1 s1x2x3 p1x0x0 d2x1x1 op1x1x2 g2"),
    layer("n2 ci3 co2 i4x3x4 k2x3x3 s2 p0x1x1 op1", bias=False),
    Sample(
        "overlapping windows, norms without operands",
        Chain(
            conv_transpose(1), batch_norm(training=True), max_pool(3, 2, 1), group_norm(2), tanh()
        ),
        "n2 ci3 co4 i9 k3 s2",
    ),
    Sample(
        "padded average, factors per channel",
        Chain(
            avg_pool((3, 2), (2, 1), (1, 0)),
            conv_transpose(2, bias="bias"),
            scale("factor"),
            batch_norm("mean", "var", bias="shift"),
            group_norm(2, "weight"),
            clamp(-1, 0.5),
            sum_over("channels"),
        ),
        "n2 ci3 co6 i7x5 k3 s2 p1",
    ),
    Sample(
        "every other stage",
        Chain(
            conv_transpose(3),
            max_pool((2, 3, 1), 1, (1, 1, 0)),
            batch_norm(bias="shift", training=True, eps=1e-3),
            add(-0.25),
            sigmoid(),
            softmax("channels"),
            scale(3),
            softmax("space"),
        ),
        "n2 ci2 co3 i3x4x2 k2 s2",
    ),
    Sample(
        "crossed bounds",
        Chain(conv_transpose(1), clamp(1, -1), add("term")),
        "n2 ci3 co4 i5 k3",
    ),
    Sample(
        "maps",
        Chain(conv_transpose(1), gelu(), prelu("slope"), mish(), elu(0.5), logsigmoid(), waved()),
        "n2 ci3 co4 i5 k3",
    ),
    Sample(
        "conditions",
        Chain(conv_transpose(1), hardswish(), hardtanh(), chosen("low"), clamp("low", 9.0)),
        "n2 ci3 co4 i5 k3",
    ),
]


def built(peer: Peer, work: Work) -> Runner:
    """The runner; a library that is not installed here skips the test."""
    try:
        return peer.build(work)
    except Missing as missing:
        if "is not installed" in str(missing):
            pytest.skip(str(missing))
        raise


def outcome(peer: Peer, work: Work) -> Tensor | str:
    """The result, or why there is none."""
    try:
        runner = built(peer, work)
        return runner.collect(runner.run(runner.adapt(work.x)))
    except (Missing, RuntimeError) as refusal:
        return str(refusal)


def judge(work: Work, y: Tensor) -> str:
    """What is wrong with a result, or nothing."""
    chain, problem, length = work.chain, work.problem, longest_sum(work.chain, work.problem)
    tensors = work.x, work.weight, work.operands
    assert y.dtype == work.x.dtype
    return Oracle(chain, problem, *tensors, ulp=work.precision.ulp, length=length).judge(y).fault


@pytest.fixture(autouse=True)
def as_in_the_bench():
    with torch.inference_mode():
        yield


REFUSALS = {
    ("torch other layout", "fp32"): "no channels_last for one spatial axis",
    ("torch other layout", "fp16"): "avg_pool3d.* not implemented for 'Half'",
    ("torch other layout", "bf16"): "avg_pool3d.* not implemented for 'BFloat16'",
    ("torch eager", "fp16"): "avg_pool3d.* not implemented for 'Half'",
    ("torch eager", "bf16"): "avg_pool3d.* not implemented for 'BFloat16'",
    ("onnxruntime", "fp32"): r"output_padding \(1\) may be too large for stride \(1\)",
    ("onnxruntime", "bf16"): "onnxruntime has no bf16 here: .*(ConvTranspose|AveragePool)",
    ("onnxruntime", "fp64"): "onnxruntime has no fp64 here: .*(ConvTranspose|AveragePool)",
    ("OpenVINO", "fp64"): "OpenVINO computes float64 in float32",
}
"""What peers say of that which they do not serve; everything else they must get right."""


@pytest.mark.parametrize(
    ("precision", "sample"),
    [
        *(("fp32", sample) for sample in SAMPLES),
        *((precision, sample) for precision in ("fp64", "fp16", "bf16") for sample in SMALL),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("name", ON_CPU)
def test_result_is_within_budget_or_refused_with_a_reason(name, precision, sample):
    work = sample.work(precision)
    y = outcome(ON_CPU[name], work)
    if isinstance(y, str):
        assert re.search(REFUSALS.get((name, precision), "no refusal is expected"), y)
    else:
        assert not judge(work, y)


@pytest.mark.parametrize("name", ON_CPU)
def test_inputs_and_results_keep_their_values(name):
    """Inputs take turns in the bench, and a library may reuse the memory of its output."""
    work = SMALL[0].work()
    runner = built(ON_CPU[name], work)
    inputs = [runner.adapt(work.x * factor) for factor in (1, 2)]
    first, second = (runner.collect(runner.run(each)) for each in inputs)
    kept = first.clone()
    assert torch.allclose(second, 2 * first)
    native = runner.adapt(work.x)
    y = runner.collect(runner.run(native))
    work.x.zero_()  # what a peer took without a copy changes with it
    runner.run(native)
    assert torch.equal(y, kept)
    assert torch.equal(runner.collect(runner.run(inputs[0])), kept)


def test_openvino_computes_float32_in_float32():
    """Left alone it takes bfloat16 where the CPU has that."""
    assert built(peers()["OpenVINO"], SMALL[0].work()).note == "f32 arithmetic"


def test_compiled_chains_are_right_and_compiled_once_each():
    """With room for one compilation a function, two peers and two cases all keep theirs."""
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    counters.clear()
    works = [SMALL[0].work(), layer("n1 ci2 co3 i5 k3 s2").work()]
    names = ("torch.compile", "torch.compile max-autotune")
    with config.patch(recompile_limit=1):
        runners = [peers()[name].build(work) for name, work in zip(names, works, strict=True)]
        for _ in range(2):
            for runner, work in zip(runners, works, strict=True):
                assert not judge(work, runner.run(work.x))
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_torch_compile_follows_every_operator_as_it_is_written(operator):
    """Without a graph break: the peer would be missing from the results."""
    case = operator.case("small")
    chain, problem = operator.bound(case), case.problem
    x, weight, operands = real(chain, problem, 0)
    written = as_written(Work(chain, problem, PRECISIONS["fp32"], x, weight, operands))
    compiled = torch.compile(lambda x: written(x), fullgraph=True, backend="eager")
    assert compiled(x).equal(written(x))


def test_compilation_without_a_compiler_says_so(monkeypatch):
    work = SMALL[0].work()
    with (
        torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(Missing, match=r"needs a C\+\+ compiler on a CPU: .*no-such-compiler"),
    ):
        peers()["torch.compile"].build(work)
    monkeypatch.setattr("transfuse.bench.peers.torch_compile.find_spec", lambda name: None)
    with pytest.raises(Missing, match="needs Triton on a GPU"):
        peers()["torch.compile"].build(SMALL[0].work(device="cuda:sm90"))


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("onnxruntime", "cuda:sm90", "onnxruntime is compared on CPUs only"),
        ("OpenVINO", "cuda:sm90", "OpenVINO is compared on CPUs only"),
        ("JAX/XLA", "cpu", "JAX is compared on GPUs only"),
    ],
)
def test_other_devices_are_refused_with_a_reason(name, device, reason):
    with pytest.raises(Missing, match=reason):
        peers()[name].build(SMALL[0].work(device=device))


def test_a_jax_without_gpu_says_so():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("this JAX has a GPU")
    with pytest.raises(Missing, match="this JAX has no GPU: "):
        peers()["JAX/XLA"].build(SMALL[0].work(device="cuda:sm90"))


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("onnx", "onnxruntime", "transfuse[bench]"),
        ("onnx", "OpenVINO", "transfuse[bench]"),
        ("onnxruntime", "onnxruntime", "transfuse[bench]"),
        ("openvino", "OpenVINO", "transfuse[bench]"),
        ("jax", "JAX/XLA", "jax[cuda13]"),
    ],
)
def test_a_library_that_is_not_installed_is_named(monkeypatch, module, name, advice):
    if module == "onnx" and importlib.util.find_spec(name.lower()) is None:
        pytest.skip(f"{name} is not installed")
    monkeypatch.setitem(sys.modules, module, None)
    expected = f"{module} is not installed; pip install '{advice}'"
    with pytest.raises(Missing, match=re.escape(expected)):
        ON_CPU[name].build(SMALL[0].work())


def test_a_library_that_is_broken_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import its_missing_half\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="its_missing_half"):
        library("half_installed")


def test_every_public_stage_has_its_form():
    """All but these, which are named where a chain has one."""
    left = {AdaptivePool, LpPool, PixelShuffle}
    modules = (norm, reduce, shape, window)
    made = {type(s) for s in (conv_transpose(1), tanh(), batch_norm(training=True), max_pool(2))}
    for module in modules:
        classes = (each for each in vars(module).values() if isinstance(each, type))
        made |= {c for c in classes if issubclass(c, stages.Stage) and hasattr(c, "name")}
    internal = {BatchStatistics, BatchApply, window.ExtremumPool}
    made = {each for each in made if each.__module__.startswith("transfuse.")}
    assert made - left - internal - {stages.Stage} == set(EMITTERS) == set(STAGES)


def test_a_stage_without_a_form_is_named():
    sample = of_operator("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", "small")
    work = sample.work()
    work = replace(work, chain=rewritten(work.chain))
    for name in ("onnxruntime", "JAX/XLA"):
        with pytest.raises(Missing, match=r"form of stage batch_statistics\(.*\) is written"):
            built(ON_CPU[name], work)


@pytest.mark.parametrize("precision", ["fp32", "fp64", "fp16", "bf16"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_onnx_models_are_valid(sample, precision):
    """The checker infers every shape and type, and compares the result with what is declared."""
    onnx = pytest.importorskip("onnx")
    work = sample.work(precision)
    model = onnx_model(work.chain, work.problem, work.weight, work.operands)
    onnx.checker.check_model(model, full_check=True)


def test_a_new_peer_is_one_small_file(monkeypatch, tmp_path):
    (tmp_path / "another_way.py").write_text(
        "class Another:\n    name = 'another way'\n\nPEERS = (Another(),)\n", encoding="utf-8"
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    module = f"{package.__name__}.another_way"
    monkeypatch.delitem(sys.modules, module, raising=False)  # so that it goes when the test ends
    monkeypatch.setattr(package, "another_way", None, raising=False)
    assert next(iter(peers())) == "torch eager"
    assert peers()["another way"].name == "another way"
