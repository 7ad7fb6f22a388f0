"""What a long-running process asks of the core: the same bits, threads, forks, fresh weights,
good rounding, a cheap first call.
"""

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing import get_context
from time import sleep
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.accuracy import Oracle
from transfuse.backends import cpu
from transfuse.backends.cpu import weights
from transfuse.chain import Chain
from transfuse.check import check
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.reference import reference
from transfuse.stages import conv_transpose

SLUGS = list(OPERATORS)
# One case beside the declared ones: several tiles, several passes, a few milliseconds.
MEDIUM = {
    "conv-transpose-2d-square-input-asym-kernel": "n2 ci16 co24 i40x40 k3x7 s2x1 p1 op1x0",
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": "n2 ci16 co40 i24x24 k4 s2 p1 op1 "
    "scaling_factor=2",
    "conv-transpose3d-avgpool-clamp-softmax-multiply": "n1 ci8 co16 i16x24x24 k3 s2 p1 op1 "
    "pool_kernel=2 clamp_min=0 clamp_max=1",
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": "n4 ci16 co32 i19x23 k5 s1 p1 "
    "num_groups=8",
    "conv-transpose3d-max-max-sum": "n1 ci8 co16 i15x14x13 k5 s2 p2",
}
HANG = 300
"""Seconds after which something hangs, however busy the machine."""
Given = Callable[..., Any]
each_slug = pytest.mark.parametrize("slug", SLUGS)


def line(slug: str, case: str) -> str:
    return MEDIUM[slug] if case == "medium" else case


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, as a user does; afterwards it is what it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_every_operator_has_a_medium_case() -> None:
    assert list(MEDIUM) == SLUGS


# ---- the same bits ---------------------------------------------------------------------------


@each_slug
@pytest.mark.parametrize("case", ["small", "ragged", "medium"])
def test_same_bits_for_any_number_of_threads(
    slug: str, case: str, given: Given, threads: Callable[[int], None]
) -> None:
    one = given(slug, line(slug, case))
    threads(1)
    first = one.function(backend="cpu")
    same = 0
    for count in (1, 2, 3, 5):
        threads(count)
        same += sum(one.function(backend="cpu").equal(first) for _ in range(3))
    assert same == 12
    assert cpu_judged(one, first)


def cpu_judged(one: Any, y: Tensor) -> bool:
    chain, problem = one.operator.bound(one.case), one.case.problem
    ulp = cpu.Cpu().ulp(problem)
    return Oracle(chain, problem, one.x, one.weight, one.operands, ulp).judge(y).ok


# ---- Python's threads ------------------------------------------------------------------------


def test_python_threads_at_once(given: Given, threads: Callable[[int], None]) -> None:
    """Each calls its own operators, and so packs and reads weights beside the others."""
    threads(2)
    cases = [given(slug, line(slug, "medium")) for slug in SLUGS]
    alone = [one.function(backend="cpu") for one in cases]
    weights._kept.clear()
    faults: list[str] = []

    def work(first: int) -> None:
        for turn in range(10):
            i = (first + turn) % len(cases)
            if not cases[i].function(backend="cpu").equal(alone[i]):
                faults.append(f"{SLUGS[i]} in turn {turn}")

    workers = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANG)
        assert not worker.is_alive()
    assert not faults


def test_python_threads_on_the_same_plan(given: Given, threads: Callable[[int], None]) -> None:
    """What is kept of a plan is shared; addresses are each call's own."""
    threads(1)
    slug = "conv-transpose2d-softmax-biasadd-scaling-sigmoid"
    cases = [given(slug, MEDIUM[slug], seed) for seed in range(4)]
    alone = [one.function(backend="cpu") for one in cases]
    faults: list[int] = []

    def work(i: int) -> None:
        for _ in range(50):
            if not cases[i].function(backend="cpu").equal(alone[i]):
                faults.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANG)
        assert not worker.is_alive()
    assert not faults


class Watched:
    """The core; tells what another thread had done before each run, and after it."""

    def __init__(self, core: ctypes.CDLL, done: Callable[[], int]) -> None:
        self._core, self._done = core, done
        self.seen: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def transfuse_run(self, *arguments: Any) -> int:
        return self._watch(self._core.transfuse_run, arguments)

    def transfuse_run_unless_changed(self, *arguments: Any) -> int:
        return self._watch(self._core.transfuse_run_unless_changed, arguments)

    def _watch(self, run: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        before = self._done()
        status = run(*arguments)
        self.seen.append((before, self._done()))
        return status


def test_other_python_threads_go_on_during_a_call(
    monkeypatch: pytest.MonkeyPatch, core: ctypes.CDLL
) -> None:
    """Python is told never to change threads by itself, so only the core's call can let one in:
    at the first call or, as the system likes, at a later one. The other thread sleeps long enough
    for this one to be let in again.
    """
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1
            sleep(1e-4)

    watched = Watched(core, lambda: ticks[0])
    monkeypatch.setattr(cpu.library, "load", lambda: watched)
    interval, ticker = sys.getswitchinterval(), threading.Thread(target=tick)
    x, w = torch.randn(1, 16, 64, 64), torch.randn(16, 16, 4, 4)
    sys.setswitchinterval(HANG)
    try:
        ticker.start()
        for _ in range(1000):
            transfuse.conv_transpose2d(x, w, stride=2, backend="cpu")
            if any(a < b for a, b in watched.seen):
                break
    finally:
        done.set()
        sys.setswitchinterval(interval)
        ticker.join()
    assert any(a < b for a, b in watched.seen)


# ---- processes -------------------------------------------------------------------------------


def checked_in_child(method: str, count: int) -> str:
    """How an operator fares in a child that uses this many threads."""
    operator = OPERATORS["conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"]
    with warnings.catch_warnings():
        # From Python 3.12 on: a fork of a process with threads may hang. That is the question.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = get_context(method)
        with context.Pool(1, torch.set_num_threads, (count,)) as pool:
            job = pool.apply_async(check, (operator, operator.case("ragged"), cpu.Cpu(), 0))
            return job.get(timeout=HANG).status


def test_a_forked_child_with_one_thread(given: Given, threads: Callable[[int], None]) -> None:
    """As the workers of torch's DataLoader are."""
    threads(2)
    given(SLUGS[0], MEDIUM[SLUGS[0]]).function(backend="cpu")
    assert checked_in_child("fork", 1) == "passed"


FORK = """
import os, sys, time, torch, transfuse
from transfuse.backends.cpu import threads

torch.set_num_threads(2)
x, w = torch.randn(1, 64, 32, 32), torch.randn(64, 64, 4, 4)  # torch compares them in parallel

def call():
    return transfuse.conv_transpose2d(x, w, stride=2, backend="cpu")

before = call()
assert threads.count() == 2
child = os.fork()
if not child:
    {first}
    same = call().equal(before) and call().equal(before)
    os._exit(0 if same and threads.count() == 1 else 1)
for _ in range(1200):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
sys.exit("the child did not end")
"""


@pytest.mark.parametrize("first", ["pass", "torch.set_num_threads(1)"], ids=["alone", "by choice"])
def test_a_forked_child_uses_one_thread(first: str) -> None:
    """With two, GNU's OpenMP waits in the child for threads that are not there."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK.format(first=first)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=HANG)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_may_choose(threads: Callable[[int], None]) -> None:
    """A number that is not the parent's is the child's own choice."""
    threads(2)
    cpu.threads._forked()
    threads(3)
    assert cpu.threads.count() == 3
    cpu.threads._forked()
    assert cpu.threads.count() == 1
    threads(2)
    assert cpu.threads.count() == 2


def test_a_spawned_child_with_two_threads() -> None:
    assert checked_in_child("spawn", 2) == "passed"


FIRST = """
import json, os, sys
import torch, transfuse

STARTS = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system", "ctypes.dlopen")
counting, calls, started = False, 0, []

def hear(event, arguments):
    if counting and event in STARTS:
        started.append([event, str(arguments[0]) if arguments else ""])

def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

sys.addaudithook(hear)
for name, shapes, options in json.loads(sys.argv[1]):
    function, tensors = getattr(transfuse, name), [torch.ones(shape) for shape in shapes]
    child = os.fork()  # nothing was called before, here or there
    if child:
        assert os.waitpid(child, 0)[1] == 0
        continue
    before, counting = set(sys.modules), True
    sys.setprofile(count)
    function(*tensors, **options, backend="cpu")
    sys.setprofile(None)
    counting = False
    loaded = {module.partition(".")[0] for module in set(sys.modules) - before}
    print(json.dumps([name, calls, started, sorted(loaded - sys.stdlib_module_names)]), flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_first_call_does_little(given: Given) -> None:
    """It reads the operator's document, loads the core and packs the weights: some ten thousand
    calls of Python's, most of them yaml's. Nothing is compiled, no process is started.
    """
    cases = [given(slug, "small") for slug in SLUGS]
    told = [
        (one.operator.__name__, [tuple(each.shape) for each in one.tensors], one.options)
        for one in cases
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FIRST, json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(each) for each in done.stdout.splitlines()]
    assert [name for name, *_ in found] == [one.operator.__name__ for one in cases]
    for name, calls, started, loaded in found:
        assert started == [["ctypes.dlopen", str(cpu.library.path())]], name
        assert all(re.match("transfuse|_?yaml|_?cython", each) for each in loaded), name
        assert 0 < calls < 100_000, name


# ---- packed weights --------------------------------------------------------------------------

X = torch.linspace(-1, 1, 2 * 3 * 5 * 7).view(2, 3, 5, 7)


def fresh_weight(seed: int = 0) -> Tensor:
    return torch.randn(3, 4, 3, 3, generator=torch.Generator().manual_seed(seed))


def assert_fresh(w: Tensor, what: str = "") -> None:
    """The core sees the weights as they are now."""
    with torch.no_grad():
        y = transfuse.conv_transpose2d(X, w, stride=2, backend="cpu")
        right = F.conv_transpose2d(X, w, stride=2)
        torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5, msg=what or None)


def inside(tensor: Tensor) -> Tensor:
    """The same values, as every second channel of a larger tensor."""
    return tensor.repeat_interleave(2, dim=1)[:, ::2]


def under_inference(w: Tensor) -> None:
    with torch.inference_mode():
        w.mul_(2)


def swap_storage(w: Tensor) -> None:
    """Away and back, to memory that has other values by then."""
    here, there = fresh_weight(8), fresh_weight(9)
    for storage in (here, there):
        w.data = storage
        assert_fresh(w)
    here.copy_(fresh_weight(10))
    w.data = here


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda w: w.add_(1),
    "copy_": lambda w: w.copy_(fresh_weight(7)),
    "an element": lambda w: w.__setitem__((0, 0, 0, 0), 5.0),
    "a slice": lambda w: w.__setitem__((slice(None), 1), 5.0),
    "...": lambda w: w.__setitem__(..., fresh_weight(7)),
    "a view": lambda w: w[1:, 2].mul_(3),
    "detach": lambda w: w.detach().mul_(3),
    "out=": lambda w: torch.mul(w, 3, out=w),
    "foreach": lambda w: torch._foreach_mul_([w], 3.0),
    "init": lambda w: torch.nn.init.ones_(w),
    "inference_mode": under_inference,
    "NaN": lambda w: w.fill_(torch.nan),
    "storage": swap_storage,
    "transpose": lambda w: w.transpose_(2, 3),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layout", [torch.clone, inside], ids=["contiguous", "strided"])
def test_weights_changed_in_place(layout: Callable[[Tensor], Tensor], change: str) -> None:
    w = layout(fresh_weight())
    for _ in range(3):
        assert_fresh(w)
        CHANGES[change](w)
        if change == "NaN":
            y = transfuse.conv_transpose2d(X, w, stride=2, backend="cpu")
            assert y.isnan().all()
            w.fill_(1)
        assert_fresh(w)


OPTIMIZERS = {
    "SGD": lambda w: torch.optim.SGD([w], lr=0.5),
    "Adam": lambda w: torch.optim.Adam([w], lr=0.5),
    "Adam foreach": lambda w: torch.optim.Adam([w], lr=0.5, foreach=True),
    "Adam fused": lambda w: torch.optim.Adam([w], lr=0.5, fused=True),
    "SGD fused": lambda w: torch.optim.SGD([w], lr=0.5, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_after_an_optimizer_step(name: str) -> None:
    w = torch.nn.Parameter(fresh_weight())
    optimizer = OPTIMIZERS[name](w)
    for _ in range(3):
        assert_fresh(w)
        w.grad = torch.ones_like(w)
        optimizer.step()
        assert_fresh(w)


def test_weights_in_memory_that_numpy_writes() -> None:
    """torch does not count such changes."""
    array = fresh_weight().numpy()
    w = torch.from_numpy(array)
    assert_fresh(w)
    array *= 2
    assert_fresh(w)


def test_a_new_tensor_with_the_id_of_a_dead_one() -> None:
    ids = set()
    for seed in range(40):
        w = fresh_weight(seed)
        ids.add((id(w), w.data_ptr()))
        assert_fresh(w)
        del w
    assert len(ids) < 40, "no id came twice: this test shows nothing"


def test_one_weight_under_several_options() -> None:
    """The same tensor, packed for groups, for a scale and for other strides."""
    w, x = fresh_weight(), torch.randn(1, 3, 6, 6)
    for _ in range(2):
        for groups in (1, 3):
            y = transfuse.conv_transpose2d(x, w, groups=groups, backend="cpu")
            torch.testing.assert_close(y, F.conv_transpose2d(x, w, groups=groups))
        for pool in (2, 3):  # the first goes into the weights, the second does not
            before = [transfuse.stages.avg_pool(pool)]
            y = transfuse.conv_transpose(x, w, before=before, backend="cpu")
            torch.testing.assert_close(y, F.conv_transpose2d(F.avg_pool2d(x, pool), w))


def test_one_position_keeps_no_weights() -> None:
    """There the weights are read as they lie."""
    weights._kept.clear()
    x, w, b = torch.randn(5, 3, 1, 1), fresh_weight(), torch.randn(4)
    for layout in (torch.clone, inside):
        v = layout(w)
        for _ in range(2):
            y = transfuse.conv_transpose2d(x, v, b, backend="cpu")
            torch.testing.assert_close(y, F.conv_transpose2d(x, v, b))
            v.mul_(2)
        assert bool(weights._kept) == (layout is inside)
    out = torch.empty(5, 4, 3, 6)[..., ::2]
    transfuse.conv_transpose2d(x, w, b, backend="cpu", out=out)
    torch.testing.assert_close(out, F.conv_transpose2d(x, w, b))


def kept_bytes() -> int:
    return sum(packed.nbytes for packed in weights._kept.values())


def test_packed_weights_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    weights._kept.clear()
    alive = [fresh_weight(seed) for seed in range(8)]
    assert_fresh(alive[0])
    monkeypatch.setattr(weights, "MOST", 3 * kept_bytes() + 100)
    for _ in range(2):
        for w in alive:
            assert_fresh(w)
            assert kept_bytes() <= weights.MOST
    assert len(weights._kept) == 3
    last = {w.untyped_storage() for w in alive[-3:]}
    assert {each.source() for each in weights._kept.values()} == last, "the last used stay"


def test_packed_weights_of_dead_tensors_go(monkeypatch: pytest.MonkeyPatch) -> None:
    weights._kept.clear()
    monkeypatch.setattr(weights, "GONE", 0)
    for seed in range(20):
        assert_fresh(fresh_weight(seed))
    gc.collect()
    last = fresh_weight()
    assert_fresh(last)
    assert len(weights._kept) <= 2


def test_packing_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights._kept.clear()  # the same values may have been packed before
    packs: list[Tensor] = []
    pack = weights._pack
    monkeypatch.setattr(weights, "_pack", lambda *args: packs.append(args[3]) or pack(*args))
    w = fresh_weight()
    for _ in range(5):
        assert_fresh(w)
    assert len(packs) == 1
    w.add_(1)
    assert_fresh(w)
    assert len(packs) == 2


def test_inference_tensors() -> None:
    with torch.inference_mode():
        w = fresh_weight()
        for _ in range(3):
            assert_fresh(w)
            w.mul_(2)
        x = X.clone()
        y = transfuse.conv_transpose2d(x, w, stride=2, backend="cpu")
    torch.testing.assert_close(y.clone(), F.conv_transpose2d(X, w.clone(), stride=2))


@pytest.mark.parametrize("positions", [1, 5], ids="{} positions".format)
def test_torchs_default_device_does_not_matter(positions: int) -> None:
    """Results and packed weights are on the CPU, wherever torch would make a tensor by itself."""
    weights._kept.clear()
    x, w = torch.randn(2, 3, positions, 1), fresh_weight()
    with torch.device("meta"):
        y = transfuse.conv_transpose2d(x, w, backend="cpu")
    torch.testing.assert_close(y, F.conv_transpose2d(x, w))


# ---- accuracy --------------------------------------------------------------------------------


@each_slug
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sixteen_bits_are_as_good_as_correctly_rounded(slug: str, dtype: str, given: Given) -> None:
    one = given(slug, f"{MEDIUM[slug]} {dtype}")
    exact = one.exact()
    y = one.function(backend="cpu").double()
    best = exact.to(ELEMENTS[dtype].dtype).double()
    errors, least = (y - exact).abs(), (best - exact).abs()
    ratio = (errors / least)[least > 0]
    assert ratio.numel() > 0.9 * exact.numel()
    assert ratio.median() <= 1.1
    assert errors.mean() <= 1.01 * least.mean()


@each_slug
@pytest.mark.parametrize("case", ["small", "ragged", "medium"])
def test_float32_rounds_little(slug: str, case: str, given: Given) -> None:
    """An ulp of the largest result for every stage, and one more for the sum: about what a chain
    that rounds once after each stage is off by. No other library is the measure: theirs depends on
    what they find in the machine.
    """
    one = given(slug, line(slug, case))
    exact = one.exact()
    error = (one.function(backend="cpu").double() - exact).abs().max().item()
    ulp = torch.finfo(torch.float32).eps * exact.abs().max().item()
    assert error <= (len(one.operator.bound(one.case).stages) + 1) * ulp


def one_by_one(problem: Problem, x: Tensor, w: Tensor) -> Tensor:
    """The definition in float32, every product rounded and added to its output in turn: steps on
    single elements, and so the same bits on every machine.
    """
    rank, axes = problem.rank, problem.axes
    y = x.new_zeros(len(x), problem.out_channels, *(a.size + 2 * a.padding for a in axes))
    for channel, *tap in product(range(problem.in_channels), *map(range, problem.kernel)):
        first = [k * a.dilation for k, a in zip(tap, axes, strict=True)]
        reached = [
            slice(k, k + (a.n - 1) * a.stride + 1, a.stride)
            for k, a in zip(first, axes, strict=True)
        ]
        weights = w[(channel, slice(None), *tap)].view(-1, *[1] * rank)
        y[(..., *reached)].add_(x[:, channel, None] * weights)
    return y[(..., *(slice(a.padding, a.padding + a.size) for a in axes))]


# What the error may be of that of adding one by one. At stride 1 four times as many terms meet, and
# the core, like others, does not add them all in one row.
@pytest.mark.parametrize(("stride", "most"), [(1, 0.75), (2, 1.1)])
@pytest.mark.parametrize("shape", ["ci64 co32 i24x20 k3", "ci32 co32 i21x20 k5 p2"])
def test_rows_in_pairs_round_little(shape: str, stride: int, most: float) -> None:
    """Where the core takes sums of rows and of weights: the root of the mean square of errors, in
    which single draws do not count.
    """
    problem = Problem.parse(f"n1 {shape} s{stride}")
    chain = Chain(conv_transpose(2))
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        x, w = (
            torch.randn(dims, generator=random, dtype=torch.float64).float()
            for dims in (problem.input.dims, problem.weight)
        )
        exact = reference(chain, problem, x, w, {})
        ours, plain = (
            (y.double() - exact).square().mean().sqrt().item()
            for y in (cpu.Cpu().run(chain, problem, x, w, {}), one_by_one(problem, x, w))
        )
        assert ours <= most * plain


# ---- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["x", "weight", "bias"])
def test_tensors_that_require_grad(which: str) -> None:
    tensors = {"x": X.clone(), "weight": fresh_weight(), "bias": torch.ones(4)}
    tensors[which].requires_grad_()
    then = [transfuse.stages.tanh()]
    found, expected = (
        torch.autograd.grad(
            transfuse.conv_transpose(**tensors, stride=2, then=then, backend=backend).sum(),
            tensors[which],
        )[0]
        for backend in ("cpu", "eager")
    )
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        served = transfuse.conv_transpose(**tensors, stride=2, then=then, backend="cpu")
    assert not served.requires_grad
