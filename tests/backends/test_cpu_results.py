"""Memory of large results: taken again when nothing refers to it, never before, and not hoarded."""

import copy
import gc
import io
import os
import pickle
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

import transfuse
from transfuse.backends.cpu import results
from transfuse.bench.clock import HostClock

MIB = 2**20
X, W = torch.randn(1, 4, 128, 128), torch.randn(4, 8, 2, 2)
RIGHT = F.conv_transpose2d(X, W, stride=2)
assert RIGHT.nbytes == 2 * MIB


def call(x: Tensor = X) -> Tensor:
    """A result of 2 MiB."""
    return transfuse.conv_transpose2d(x, W, stride=2, backend="cpu")


def of(size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A result of this many bytes."""
    return results.empty((size // dtype.itemsize,), dtype)


def idle() -> list[int]:
    """The addresses of idle memory, longest idle first."""
    return [memory.ctypes.data for memory in results._idle.values()]


@pytest.fixture(autouse=True)
def none_idle() -> Iterator[None]:
    gc.collect()
    results.release()
    yield
    results.release()


# ---- again, and not before -------------------------------------------------------------------


def test_memory_is_taken_again() -> None:
    y = call()
    address = y.data_ptr()
    assert address % 64 == 0
    assert idle() == []
    del y
    assert idle() == [address]
    y = call()
    assert (y.data_ptr(), idle()) == (address, [])
    torch.testing.assert_close(y, RIGHT)


def test_the_second_call_takes_no_page_faults() -> None:
    """2 MiB are 512 pages."""
    call()
    faults = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 50


def test_small_results_are_torchs() -> None:
    y = transfuse.conv_transpose2d(X[..., :32, :32], W, stride=2, backend="cpu")
    assert y.untyped_storage().resizable()
    del y
    assert idle() == []


REFERENCES: dict[str, Callable[[Tensor], Any]] = {
    "the result": lambda y: y,
    "a view": lambda y: y[0, 3, 5:7],
    "a detached one": lambda y: y.detach(),
    "its storage": lambda y: y.untyped_storage(),
    "NumPy's array": lambda y: y.numpy(),
    "a view of NumPy's array": lambda y: y.numpy()[0, 1, ::2],
    "a memoryview": lambda y: memoryview(y.numpy()),
    "a capsule": to_dlpack,
    "a tensor of a capsule": lambda y: from_dlpack(to_dlpack(y)),
    "a saved tensor": lambda y: (y * torch.ones((), requires_grad=True)).grad_fn,
    "a parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_no_reuse_while_something_refers_to_it(name: str) -> None:
    y = call()
    address = y.data_ptr()
    other = REFERENCES[name](y)
    del y
    gc.collect()
    assert idle() == []
    z = call(2 * X)
    assert z.data_ptr() != address
    del other, z
    assert address in idle()


def test_results_do_not_change_under_later_calls() -> None:
    kept: list[tuple[Tensor, Tensor]] = []
    for turn in range(12):
        y = call(turn * X)
        kept.append((y, y.clone()))
        if turn % 3 == 2:
            del kept[turn // 3]
    del y
    assert all(y.equal(copied) for y, copied in kept)


@pytest.mark.parametrize(("size", "again"), [(4, True), (3.3, True), (3, False), (4.1, False)])
def test_only_a_result_that_nearly_fills_it(size: float, again: bool) -> None:
    y = of(4 * MIB)
    address = y.data_ptr()
    del y
    y = of(int(size * MIB))
    assert (y.data_ptr() == address) == again
    assert y.untyped_storage().nbytes() == y.nbytes == int(size * MIB)


def test_one_piece_serves_every_type_and_layout() -> None:
    shape, last = (4, 4, 8, 128, 128), torch.channels_last_3d
    y = of(4 * MIB)
    address = y.data_ptr()
    del y
    for dtype in (torch.float16, torch.bfloat16):
        for layout in (None, last):
            y = results.empty(shape, dtype, layout)
            right = torch.empty(shape, dtype=dtype, memory_format=layout)
            assert (y.dtype, y.shape, y.stride()) == (dtype, right.shape, right.stride())
            assert (y.data_ptr(), y.untyped_storage().nbytes()) == (address, 4 * MIB)
            del y


# ---- bounds ----------------------------------------------------------------------------------


def test_the_limit_is_a_small_part_of_memory() -> None:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < results.MOST <= min(2**30, pages // 16)


def test_the_longest_idle_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST", 10 * MIB)
    alive = [of(3 * MIB) for _ in range(5)]
    addresses = [each.data_ptr() for each in alive]
    while alive:
        del alive[0]
        assert len(idle()) <= 3
    assert idle() == addresses[-3:]
    of(11 * MIB)
    assert idle() == addresses[-3:], "too large to keep, and the others stay"


def test_idle_pieces_are_few() -> None:
    alive = [of(MIB) for _ in range(results.PIECES + 5)]
    addresses = [each.data_ptr() for each in alive]
    while alive:
        del alive[0]
    assert idle() == addresses[5:]


def test_released_memory_goes_back_to_the_system() -> None:
    """So the peak of a call counts its result, whatever lay idle before."""
    y = of(64 * MIB).zero_()
    del y
    peak = HostClock().peak(lambda: of(64 * MIB).zero_())
    if peak is None:
        pytest.skip("peak memory is only measured on Linux with glibc")
    assert 60 * MIB <= peak <= 70 * MIB


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(RuntimeError) as ours:
        of(2**50)
    assert str(ours.value) == str(theirs.value)


SCARCE = """
import resource
from pathlib import Path
import torch
from transfuse.backends.cpu import results

first = results.empty((300 * 2**20,), torch.uint8)
del first
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 200 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
results.empty((400 * 2**20,), torch.uint8)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_idle_memory_is_given_up_for_what_is_needed() -> None:
    quiet(SCARCE)


# ---- threads, collectors, processes ----------------------------------------------------------


def test_python_threads_get_memory_of_their_own() -> None:
    """Each sees its own values, although all take from and give to the same few pieces."""
    good: list[int] = []

    def work(number: int) -> None:
        for turn in range(300):
            y = of((1 + 2 * (turn % 3)) * MIB, torch.int32)[:: 4096 // 4]
            y[:] = number * 1000 + turn
            good.append(bool((y == number * 1000 + turn).all()))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    sys.setswitchinterval(before)
    assert (len(good), all(good)) == (4 * 300, True)
    assert 0 < len(set(idle())) == len(idle()) <= results.PIECES


def test_results_that_torch_frees_without_pythons_lock() -> None:
    """As the engine of gradients frees what a graph has saved."""
    factor = torch.ones((), requires_grad=True)
    y = call()
    address, loss = y.data_ptr(), (y * factor).sum()
    del y
    assert idle() == []
    loss.backward()
    assert idle() == [address]


class Cycle:
    """Something that only the collector frees."""

    def __init__(self, held: Tensor, end: Callable[[], Any] = lambda: None) -> None:
        self.held, self.end, self.me = held, end, self

    def __del__(self) -> None:
        self.end()


def test_results_that_the_collector_frees() -> None:
    """It runs whenever memory is taken, so also amid the lines that hand out and take back."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for turn in range(300):
            Cycle(of((1 + turn % 3) * MIB))
            of((1 + turn % 3) * MIB)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert 0 < len(idle()) <= results.PIECES


def test_a_finalizer_that_makes_results() -> None:
    made: list[Tensor] = []
    Cycle(of(MIB), end=lambda: made.append(call()))
    gc.collect()
    torch.testing.assert_close(made[0], RIGHT)


FORKED = """
import os, sys, torch
from transfuse.backends.cpu import results

torch.set_num_threads(1)  # OpenMP's do not survive a fork
held, gone = (results.empty((2**20,), torch.uint8).fill_(number) for number in (1, 2))
del gone
child = os.fork()
if not child:
    nothing = not results._idle
    del held
    again = results.empty((2**20,), torch.uint8).fill_(3)
    os._exit(0 if nothing and not results._idle and bool((again == 3).all()) else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status or not bool((held == 1).all()) or len(results._idle) != 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_no_memory_of_its_parents() -> None:
    quiet(FORKED)


END = """
import atexit, threading, torch, transfuse
from transfuse.backends.cpu import results

class Late:
    def __init__(self):
        self.held = results.empty((2**20,), torch.uint8)
        self.me = self

    def __del__(self):
        del self.held
        results.empty((2**20,), torch.uint8)

held, late = results.empty((2**20,), torch.uint8), Late()
threading.kept = results.empty((2**20,), torch.uint8)
atexit.register(lambda late=Late(): results.empty((2**20,), torch.uint8))
"""


def test_results_that_live_to_the_end_of_the_process() -> None:
    quiet(END)


def quiet(code: str) -> None:
    """A process that must end well and say nothing."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- tensors like any other ------------------------------------------------------------------


def saved(y: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(y, file)
    assert file.tell() < y.nbytes + 10_000
    file.seek(0)
    return torch.load(file)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),
    "save": saved,
    "share_memory_": lambda y: y.share_memory_(),
    "resize_ to less": lambda y: y.resize_(y.shape),
    "set_": lambda y: torch.empty(0).set_(y),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    y = COPIES[name](call())
    call(-X)
    torch.testing.assert_close(y, RIGHT)


def test_shared_memory_is_no_longer_ours() -> None:
    y = call()
    address = y.data_ptr()
    y.share_memory_()
    assert y.is_shared()
    assert idle() == [address] != [y.data_ptr()]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradients_flow_through_results_as_through_any_tensor(mode: Callable[[], Any]) -> None:
    """Whatever the mode in which they were made, also where they are written in place."""
    with mode():
        y, plain = call(), torch.empty(0)
    assert (y.is_inference(), y.is_leaf, y._is_view()) == (plain.is_inference(), True, False)
    if y.is_inference():
        return
    factor = torch.ones((), requires_grad=True)
    y.mul_(factor)
    y.sum().backward()
    assert factor.grad is not None
    torch.testing.assert_close(factor.grad, RIGHT.sum(), rtol=1e-3, atol=1e-1)
    leaf = call().requires_grad_()
    (2 * leaf).sum().backward()
    assert leaf.grad is not None
    assert bool((leaf.grad == 2).all())


def test_inference_mode_leaves_nothing_behind() -> None:
    with torch.inference_mode():
        address = call().data_ptr()
    y = call()
    assert (y.data_ptr(), y.is_inference()) == (address, False)
    y.mul_(torch.ones((), requires_grad=True))


def test_a_result_does_not_grow() -> None:
    """Its memory is not its storage's own; torch says so."""
    with pytest.raises(RuntimeError, match="not resizable"):
        call().resize_(10 * MIB)
