"""The GPU backend on a GPU: results, reruns, streams, graphs, devices, overhead, memory checks.

`make test-gpu`. In the interpreter and as machine code it is tested without one:
`tests/backends/triton`.
"""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import conv_transpose2d, fills
from transfuse.accuracy import Oracle
from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines.hopper_strip import strip_kernel
from transfuse.backends.triton.engines.hopper_window import window_kernel
from transfuse.chain import Chain
from transfuse.check import check
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import (
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)

ARITHMETICS = ("fp32", "tf32", "fp16", "bf16", "fp64")
PLAIN = next(iter(OPERATORS))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", ["small", "ragged", "cpu"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_operator(slug: str, name: str, arithmetic: str) -> None:
    """Real numbers, integers bit for bit, NaN and Inf; outputs are NaN before."""
    operator = OPERATORS[slug]
    case = operator.case(name).on(arithmetic, "cuda")
    result = check(operator, case, Triton(), seed=0)
    assert result.status == "passed", f"{result.fault or result.refusal}\n  {result.command}"


CHAINS = [
    ("n2 ci5 co18 i7x9 k3x2 s2x1 p1x0 op1x0", (tanh(), group_norm(3, "w", "b"))),
    ("n2 ci6 co36 i5x6 k3 g2", (softmax("channels"),)),
    (
        "n2 ci6 co6 i9x7 k3 s2 g6",
        (batch_norm(weight="w", bias="b", training=True), tanh(), max_pool(2), group_norm(2)),
    ),
    ("n3 ci4 co12 i4x9x5 k2x3x1 s1x2x3 g2", (max_pool(3, 2, 1), softmax("space"))),
    ("n1 ci3 co66 i37x41 k2 s8", (sigmoid(),)),
    ("n2 ci16 co32 i9x9 k2 s2", ()),
    ("n2 ci64 co128 i9x9 k4 s2 p1", (softmax("channels"), scale(3.0), sigmoid())),  # weights held
    ("n64 ci4 co8 i99x99 k3 p1", (batch_norm(training=True), group_norm(2))),
]


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("fill", [fills.real, fills.special])
@pytest.mark.parametrize(("line", "then"), CHAINS, ids=[line for line, _ in CHAINS])
def test_chain(line: str, then: tuple[Any, ...], fill: Any, arithmetic: str) -> None:
    precision = "tf32" if arithmetic == "tf32" else "ieee"
    dtype = "fp32" if arithmetic == "tf32" else arithmetic
    problem = replace(Problem.parse(line), dtype=dtype, device="cuda", precision=precision)
    chain = Chain(conv_transpose(problem.rank, "bias"), *then)
    verdict = Triton().verdict(chain, problem)
    assert verdict.ok, verdict.reason
    x, w, operands = fill(chain, problem, 0)
    shape = chain.shapes(problem)[-1].dims
    out = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
    Triton().run(chain, problem, x, w, operands, out)
    accuracy = Oracle(chain, problem, x, w, operands, Triton().ulp(problem)).judge(out)
    assert accuracy.ok, accuracy.fault
    again = torch.full_like(out, torch.nan)
    Triton().run(chain, problem, x, w, operands, again)
    assert same_bits(out, again)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_benchmark_size(slug: str, arithmetic: str, cuda: torch.device) -> None:
    """Some samples of the largest case against torch in float64, and the same bits twice.

    Where a statistic covers the batch, the batch is those samples.
    """
    operator = OPERATORS[slug]
    case = operator.case("benchmark").on(arithmetic, "cuda")
    whole = any(stage.name == "batch_norm" for stage in operator.chain.stages)
    batch = 4 if whole else case.problem.batch
    problem = replace(case.problem, batch=batch)
    chain = operator.bound(case)
    x, w, operands = fills.real(chain, problem, 0)
    shape = chain.shapes(problem)[-1].dims
    out, again = (torch.full(shape, torch.nan, dtype=x.dtype, device=cuda) for _ in range(2))
    Triton().run(chain, problem, x, w, operands, out)
    Triton().run(chain, problem, x, w, operands, again)
    assert same_bits(out, again)
    samples = [slice(None)] if whole else [slice(0, 1), slice(batch - 1, batch)]
    for sample in samples:
        part = replace(problem, batch=len(range(batch)[sample]))
        oracle = Oracle(chain, part, x[sample], w, operands, Triton().ulp(problem))
        accuracy = oracle.judge(out[sample])
        assert accuracy.ok, accuracy.fault
        del oracle


def given(slug: str, arithmetic: str = "fp16", name: str = "cpu") -> Any:
    case = OPERATORS[slug].case(name).on(arithmetic, "cuda")
    chain = OPERATORS[slug].bound(case)
    x, w, operands = fills.real(chain, case.problem, 0)
    return chain, case.problem, x, w, operands


@pytest.mark.parametrize("slug", OPERATORS)
def test_current_stream(slug: str, cuda: torch.device) -> None:
    """What a stream computes waits for what was there before it, and nothing else does."""
    chain, problem, x, w, operands = given(slug)
    right = Triton().run(chain, problem, x, w, operands)
    torch.cuda.synchronize()
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream(cuda)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        y = Triton().run(chain, problem, late, w, operands)
    stream.synchronize()
    assert same_bits(y, right)


@pytest.mark.parametrize("slug", OPERATORS)
def test_graph(slug: str) -> None:
    """Captured, then replayed on other inputs and other weights, also those that are not finite."""
    chain, problem, x, w, operands = given(slug, name="small")
    out = Triton().run(chain, problem, x, w, operands)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        Triton().run(chain, problem, x, w, operands, out)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        Triton().run(chain, problem, x, w, operands, out)
    for seed, fill in ((1, fills.real), (2, fills.special), (3, fills.real)):
        for tensor, value in zip((x, w), fill(chain, problem, seed)[:2], strict=True):
            tensor.copy_(value)
        out.fill_(torch.nan)
        graph.replay()
        accuracy = Oracle(chain, problem, x, w, operands, Triton().ulp(problem)).judge(out)
        assert accuracy.ok, f"{accuracy.fault} in replay {seed}"


def test_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    chain, problem, x, w, operands = given(PLAIN, name="small")
    right = Triton().run(chain, problem, x, w, operands)
    far = [t.to("cuda:1") for t in (x, w)]
    y = Triton().run(chain, problem, *far, {n: t.to("cuda:1") for n, t in operands.items()})
    assert y.device.index == 1
    assert same_bits(y.to(right.device), right)


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_launches_are_those_of_triton(slug: str, arithmetic: str) -> None:
    """Asked directly, the driver computes the same bits as when Triton's launcher asks it."""
    from transfuse.backends.triton import calls

    chain, problem, x, w, operands = given(slug, arithmetic)
    calls._ready.clear()
    right = Triton().run(chain, problem, x, w, operands)
    (launch_plan,) = (ready.launch_plan for ready in calls._ready.values())
    assert launch_plan.buffers is not None, "not as expected, and so Triton launches"
    fast = Triton().run(chain, problem, x, w, operands)
    buffers, launch_plan.buffers = launch_plan.buffers, None
    slow = Triton().run(chain, problem, x, w, operands)
    launch_plan.buffers = buffers
    assert same_bits(fast, right)
    assert same_bits(slow, right)


@pytest.mark.parametrize("slug", OPERATORS)
def test_threads(slug: str) -> None:
    """Threads that no device is current in, a stream each: every result is its own."""
    chain, problem, *_ = given(slug)
    filled = [fills.real(chain, problem, seed) for seed in (1, 2)]
    right = [Triton().run(chain, problem, *each) for each in filled]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in filled]

    def work(which: int) -> list[Tensor]:
        with torch.cuda.stream(streams[which]):
            results = [Triton().run(chain, problem, *filled[which]) for _ in range(30)]
        streams[which].synchronize()
        return results

    with ThreadPoolExecutor(2) as pool:
        for results, expected in zip(pool.map(work, (0, 1)), right, strict=True):
            assert all(same_bits(each, expected) for each in results)


def test_launch_overhead(capsys: pytest.CaptureFixture[str]) -> None:
    """The time a small call takes before the GPU is done: at most twice torch's."""
    problem = Problem.parse("n1 ci16 co16 i8x8 k2 s2 fp16 cuda")
    chain = Chain(conv_transpose(2))
    x, w, operands = fills.real(chain, problem, 0)

    def micros(call: Any) -> float:
        times = []
        for _ in range(300):
            torch.cuda.synchronize()
            start = perf_counter()
            call()
            times.append(1e6 * (perf_counter() - start))
        return median(times[100:])

    ours = micros(lambda: Triton().run(chain, problem, x, w, operands))
    public = micros(lambda: conv_transpose2d(x, w, stride=2, backend="triton"))
    theirs = micros(lambda: F.conv_transpose2d(x, w, stride=2))
    told = f"{ours:.1f} us, the public call {public:.1f} us, torch {theirs:.1f} us"
    with capsys.disabled():
        print(f"\nlaunch: {told}")
    assert max(ours, public) <= 2 * theirs, told


SMALL = """
import sys, torch
from transfuse.check import check
from transfuse.backends.triton import Triton
from transfuse.operators import OPERATORS
operator = OPERATORS[sys.argv[1]]
result = check(operator, operator.case("small").on("fp16", "cuda"), Triton(), seed=0)
assert result.status == "passed", result
"""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_compute_sanitizer(tool: str, slug: str) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the path")
    options = [f"--tool={tool}", "--error-exitcode=9", "--kernel-name", "kns=convolve"]
    if tool == "memcheck":  # to ask for one parameter more than there are is how they are counted
        options += ["--report-api-errors", "no"]
    done = subprocess.run(
        [sanitizer, *options, sys.executable, "-c", SMALL, slug],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    if tool == "racecheck" and done.returncode == 9:
        assert not ours(done.stdout), said
    else:
        assert done.returncode == 0, said


def ours(report: str) -> list[str]:
    """The hazards of racecheck but those of Triton's own dispatch to warps.

    There one warp writes what the others are to run; racecheck does not see the barrier between.
    The last function of these files does nothing else: what warps do stands before it.
    """
    first = {}
    for file in map(Path, (strip_kernel.__file__, window_kernel.__file__)):
        source = file.read_text()
        first[file.name] = source[: source.rindex("\ndef ")].count("\n") + 2
    found = re.findall(r"(?:Read|Write) access at \S+ in (\S+):(\d+)", report)
    assert found, f"a report of another form: {report[-3000:]}"
    return [f"{file}:{at}" for file, at in found if int(at) < first.get(file, sys.maxsize)]
