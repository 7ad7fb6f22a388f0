"""Memory of large results: taken again when nothing refers to it, never before, and not hoarded."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

import transfuse
from transfuse.backends.cpu import results

MIB = 2**20
X, W = torch.randn(1, 4, 128, 128), torch.randn(4, 8, 2, 2)
RIGHT = F.conv_transpose2d(X, W, stride=2)
assert RIGHT.nbytes == 2 * MIB


def call(x: Tensor = X) -> Tensor:
    """A result of 2 MiB."""
    return transfuse.conv_transpose2d(x, W, stride=2, backend="cpu")


def of(size: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """A result of this many bytes."""
    return results.empty(results.Form((size // dtype.itemsize,), dtype, channels_last=False))


def held() -> list[int]:
    """The addresses of what is held, in use or idle, the longest held first."""
    return [each.address for each in results._held.values()]


def taken_next() -> set[int]:
    """Where the next results lie, all there at once, as many as there are storages held."""
    alive = [call() for _ in held()]
    return {y.data_ptr() for y in alive}


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor does the allocator have memory whose pages are there, as far as results know."""
    monkeypatch.setattr(results, "_has_pages", lambda address, size: False)
    gc.collect()
    results.release()
    yield
    results.release()


def test_this_torch_tells_what_refers_to_a_storage() -> None:
    """Where one does not, nothing is reused; then most of the tests below have nothing to say."""
    assert results._alone() is not None


HAS_PAGES = results._has_pages


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mincore")
def test_written_memory_has_pages() -> None:
    import mmap

    with mmap.mmap(-1, 4 * MIB) as memory:
        room = np.frombuffer(memory, np.uint8)
        address = room.ctypes.data
        assert not HAS_PAGES(address, 4 * MIB)
        room[: 2 * MIB] = 1
        assert HAS_PAGES(address, 2 * MIB)
        assert HAS_PAGES(address + 100, 2 * MIB - 100)
        assert not HAS_PAGES(address, 4 * MIB)
        del room


def test_memory_that_has_pages_is_the_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    y = call()
    assert held() == [y.data_ptr()]
    monkeypatch.setattr(results, "_has_pages", lambda address, size: True)
    z = call(2 * X)
    assert held() == [y.data_ptr()], "in use"
    del y
    call()
    assert held() == [], "idle: the allocator has it again"
    torch.testing.assert_close(z, 2 * RIGHT)


# ---- again, and not before -------------------------------------------------------------------


def test_memory_is_taken_again() -> None:
    y = call()
    address = y.data_ptr()
    assert address % 64 == 0
    del y
    for turn in (1, 2, 3):
        y = call(turn * X)
        assert (y.data_ptr(), held()) == (address, [address])
        torch.testing.assert_close(y, turn * RIGHT)
        del y


def test_two_results_take_turns() -> None:
    """As in ``y = f(x)`` in a loop: the new one is made while the old one is there."""
    y, addresses = call(), []
    for _ in range(6):
        y = call()
        addresses.append(y.data_ptr())
    assert addresses[:2] * 3 == addresses
    assert len({*addresses}) == len(held()) == 2


def test_the_memory_of_small_results_is_not_held() -> None:
    transfuse.conv_transpose2d(X[..., :32, :32], W, stride=2, backend="cpu")
    assert held() == []


REFERENCES: dict[str, Callable[[Tensor], Any]] = {
    "the result": lambda y: y,
    "a view": lambda y: y[0, 3, 5:7],
    "a view of a view": lambda y: y[0, 1].t(),
    "a detached one": lambda y: y.detach(),
    "its data": lambda y: y.data,
    "a tensor set to it": lambda y: torch.empty(0).set_(y),
    "a tensor set to its storage": lambda y: torch.empty(0).set_(y.untyped_storage()),
    "its storage": lambda y: y.untyped_storage(),
    "a slice of its storage": lambda y: y.untyped_storage()[5:9],
    "its typed storage": lambda y: y._typed_storage(),
    "NumPy's array": lambda y: y.numpy(),
    "a view of NumPy's array": lambda y: y.numpy()[0, 1, ::2],
    "NumPy's array of DLPack": np.from_dlpack,
    "a memoryview": lambda y: memoryview(y.numpy()),
    "a tensor of a buffer": lambda y: torch.frombuffer(y.numpy(), dtype=torch.uint8),
    "a capsule": to_dlpack,
    "a tensor of a capsule": lambda y: from_dlpack(to_dlpack(y)),
    "a saved tensor": lambda y: (y * torch.ones((), requires_grad=True)).grad_fn,
    "a parameter": torch.nn.Parameter,
    "a module's buffer": lambda y: torch.nn.Buffer(y),
    "a sparse tensor": lambda y: torch.sparse_coo_tensor(
        torch.arange(y.numel())[None], y.view(-1), check_invariants=False
    ),
    "complex numbers": lambda y: torch.view_as_complex(y.view(-1, 2)),
    "a cycle": lambda y: Cycle(y),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_no_reuse_while_something_refers_to_it(name: str) -> None:
    y = call()
    address = y.data_ptr()
    other = REFERENCES[name](y)
    del y
    gc.collect()
    for turn in (2, 3):
        z = call(turn * X)
        assert z.data_ptr() != address
        torch.testing.assert_close(z, turn * RIGHT)
    del other, z
    gc.collect()
    assert address in taken_next()


def test_weak_references_do_not_count() -> None:
    y = call()
    address, tensor, storage = y.data_ptr(), weakref.ref(y), weakref.ref(y.untyped_storage())
    del y
    assert tensor() is None
    assert storage() is not None
    assert call().data_ptr() == address


def test_results_do_not_change_under_later_calls() -> None:
    kept: list[tuple[Tensor, Tensor]] = []
    for turn in range(12):
        y = call(turn * X)
        kept.append((y, y.clone()))
        if turn % 3 == 2:
            del kept[turn // 3]
    del y
    assert all(y.equal(copied) for y, copied in kept)


@pytest.mark.parametrize("size", [3 * MIB, 4 * MIB - 4, 4 * MIB + 4, 5 * MIB])
def test_only_a_result_of_that_size(size: int) -> None:
    """A storage is as large as its result: that is what is saved, pickled and shared."""
    address = of(4 * MIB).data_ptr()
    y = of(size)
    assert y.untyped_storage().nbytes() == y.nbytes == size
    assert of(4 * MIB).data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 8, 9), (4, 8, 9, 7), (2, 3, 4, 5, 6), (0, 3, 4, 5)])
@pytest.mark.parametrize("last", [False, True])
def test_results_lie_as_torchs_do(dtype: torch.dtype, shape: tuple[int, ...], last: bool) -> None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d} if last else {}
    if last and len(shape) == 3:
        return  # torch knows no such layout
    right = torch.empty(shape, dtype=dtype, memory_format=formats.get(len(shape)))
    y = results.empty(results.Form(shape, dtype, last))
    assert (y.dtype, y.shape, y.stride()) == (dtype, right.shape, right.stride())
    assert (y.device, y.nbytes) == (right.device, right.nbytes)


def test_one_storage_serves_every_type_and_layout() -> None:
    shape, last = (4, 4, 8, 128, 128), torch.channels_last_3d
    address = of(4 * MIB).data_ptr()
    for dtype in (torch.float16, torch.bfloat16):
        for layout in (None, last):
            y = results.empty(results.Form(shape, dtype, layout is last))
            right = torch.empty(shape, dtype=dtype, memory_format=layout)
            assert (y.dtype, y.shape, y.stride()) == (dtype, right.shape, right.stride())
            assert (y.data_ptr(), y.untyped_storage().nbytes()) == (address, 4 * MIB)
            del y


def test_without_torchs_count_nothing_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no public function; a torch without it must still give right results."""
    monkeypatch.setattr(results, "_uses", None)
    results._alone.cache_clear()
    try:
        for turn in (1, 2):
            torch.testing.assert_close(call(turn * X), turn * RIGHT)
        assert held() == []
        monkeypatch.setattr(results, "_uses", lambda key: 1)  # one that counts in another way
        results._alone.cache_clear()
        kept = [call(turn * X) for turn in (1, 2)]
        assert held() == []
        assert kept[0].data_ptr() != kept[1].data_ptr()
    finally:
        results._alone.cache_clear()


# ---- what a user may do to the memory ----------------------------------------------------------


def test_a_result_grows_like_any_tensor() -> None:
    y = call()
    y.resize_(3 * RIGHT.numel())
    torch.testing.assert_close(y[: RIGHT.numel()], RIGHT.view(-1))
    y.fill_(7)
    assert call().data_ptr() != y.data_ptr()
    assert bool((y == 7).all())


def test_growth_that_fails_leaves_the_result_as_it_was() -> None:
    y = call()
    with pytest.raises(RuntimeError):
        y.resize_(2**48)
    ours, theirs = y, RIGHT.clone()
    with pytest.raises(RuntimeError):
        theirs.resize_(2**48)
    assert ours.shape == theirs.shape, "whatever torch leaves of its own tensors"
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "grown": lambda y: y.resize_(64 * MIB),
    "emptied": lambda y: y.untyped_storage().resize_(0),
    "emptied and filled": lambda y: (
        y.untyped_storage().resize_(0),
        y.untyped_storage().resize_(2 * MIB),
    ),
    "shared with processes": lambda y: y.share_memory_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_memory_that_was_changed_is_let_go(name: str) -> None:
    y = call()
    CHANGES[name](y)
    shared = y.data_ptr() if name == "shared with processes" else 0
    del y
    kept = [call(turn * X) for turn in (1, 2)]
    assert sum(each.storage.nbytes() for each in results._held.values()) <= 6 * MIB
    for turn, z in enumerate(kept, 1):
        assert z.data_ptr() != shared
        assert not z.is_shared()
        torch.testing.assert_close(z, turn * RIGHT)


def test_shared_memory_stays_with_who_shares_it() -> None:
    """Another process may read it after the last reference in this one is gone."""
    y = call()
    y.share_memory_()
    address = y.data_ptr()
    del y
    assert address not in taken_next()


def test_a_lazy_clone_keeps_its_values() -> None:
    """Its storage is another one over the same memory, until either is written to."""
    y = call()
    clone = torch._lazy_clone(y)
    del y
    call(-X)
    torch.testing.assert_close(clone, RIGHT)


# ---- bounds ----------------------------------------------------------------------------------


def test_the_limit_is_a_small_part_of_memory() -> None:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < results.MOST <= min(2**30, pages // 16)


def test_the_longest_held_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In use or not: what a program keeps costs nothing, and must not hide what is idle."""
    monkeypatch.setattr(results, "MOST", 10 * MIB)
    alive = [of(3 * MIB) for _ in range(5)]
    addresses = [each.data_ptr() for each in alive]
    assert held() == addresses[-3:]
    del alive
    assert of(3 * MIB).data_ptr() == addresses[-1]
    of(11 * MIB)
    assert held() == addresses[-3:], "too large to hold, and the others stay"


def test_few_are_held() -> None:
    alive = [of(MIB) for _ in range(results.PIECES + 5)]
    assert held() == [each.data_ptr() for each in alive[5:]]


def test_what_is_released_is_gone() -> None:
    y = of(4 * MIB)
    storage = weakref.ref(y.untyped_storage())
    del y
    assert storage() is not None
    results.release()
    assert storage() is None


@pytest.mark.parametrize("shape", [(2**50,), (2**31, 2**31, 2**31)], ids=str)
def test_memory_that_cannot_be_had(shape: tuple[int, ...]) -> None:
    form = results.Form(shape, torch.float32, channels_last=False)
    idle = weakref.ref(of(4 * MIB).untyped_storage())
    with pytest.raises(RuntimeError) as raised:
        results.empty(form)
    size = 4 * torch.Size(shape).numel() if len(shape) == 1 else form.size
    shown = ", ".join(map(str, shape))
    assert str(raised.value) == f"output of shape [{shown}] ({size} bytes) cannot be allocated"
    assert idle() is None, "what was held is given up first"


def test_a_call_whose_output_is_too_large_says_so() -> None:
    x, w = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1)
    with pytest.raises(RuntimeError) as raised:
        transfuse.conv_transpose2d(x, w, stride=2**22, backend="cpu")
    side = 2**22 + 1
    shown = f"[1, 1, {side}, {side}] ({4 * side * side} bytes)"
    assert str(raised.value) == f"output of shape {shown} cannot be allocated"


SCARCE = """
import resource
from pathlib import Path
import torch
from transfuse.backends.cpu import results

def of(mib):
    return results.empty(results.Form((mib * 2**20,), torch.uint8, False))

of(300)
assert results._held
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 200 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
of(400)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_idle_memory_is_given_up_for_what_is_needed() -> None:
    if results.MOST < 300 * MIB:
        pytest.skip("a machine with less than 5 GB holds no 300 MiB")
    quiet(SCARCE)


# ---- interrupts, threads, collectors, processes -----------------------------------------------


def test_no_line_of_python_runs_when_a_result_ends() -> None:
    """A Ctrl-C that came amid such lines would be lost: nobody could catch it there."""
    ran: list[str] = []
    for _ in range(2):
        y = call()
        sys.setprofile(lambda frame, event, _: ran.append(f"{event} of {frame.f_code.co_name}"))
        del y
        sys.setprofile(None)
    assert [each for each in ran if each.startswith("call")] == []


def test_python_threads_get_memory_of_their_own() -> None:
    """Each sees its own values, although all take from the same few storages."""
    good: list[int] = []

    def work(number: int) -> None:
        kept = [of(MIB, torch.int32)]
        for turn in range(300):
            y = of((1 + 2 * (turn % 3)) * MIB, torch.int32)[:: 4096 // 4]
            y[:] = number * 1000 + turn
            if turn % 7 == number:
                kept.append(y)
            good.append(bool((y == number * 1000 + turn).all()))
        good.extend(bool((y == y[0]).all()) for y in kept[1:])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    sys.setswitchinterval(before)
    assert len(good) > 4 * 300
    assert all(good)
    assert 0 < len(set(held())) == len(held()) <= results.PIECES


def test_results_that_torch_frees_without_pythons_lock() -> None:
    """As the engine of gradients frees what a graph has saved."""
    factor = torch.ones((), requires_grad=True)
    y = call()
    address, loss = y.data_ptr(), (y * factor).sum()
    del y
    assert address not in taken_next()
    loss.backward()
    assert address in taken_next()


class Cycle:
    """Something that only the collector frees."""

    def __init__(self, held: Tensor, end: Callable[[], Any] = lambda: None) -> None:
        self.held, self.end, self.me = held, end, self

    def __del__(self) -> None:
        self.end()


def test_results_that_the_collector_frees() -> None:
    """It runs whenever memory is taken, so also amid the lines that hand it out."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for turn in range(300):
            Cycle(of((1 + turn % 3) * MIB), end=lambda: of(MIB))
            of((1 + turn % 3) * MIB)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert 0 < len(held()) <= results.PIECES


def test_a_finalizer_that_makes_results() -> None:
    made: list[Tensor] = []
    Cycle(of(MIB), end=lambda: made.append(call()))
    gc.collect()
    torch.testing.assert_close(made[0], RIGHT)


FORKED = """
import os, sys, torch
from transfuse.backends.cpu import results

torch.set_num_threads(1)  # OpenMP's do not survive a fork
def new():
    return results.empty(results.Form((2**20,), torch.uint8, False))

alive = new().fill_(1)
new()
child = os.fork()
if not child:
    nothing = not results._held
    del alive
    again = new().fill_(3)
    os._exit(0 if nothing and len(results._held) == 1 and bool((again == 3).all()) else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(status or not bool((alive == 1).all()) or len(results._held) != 2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_no_memory_of_its_parents() -> None:
    quiet(FORKED)


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
    "resize_ to the same": lambda y: y.resize_(y.shape),
    "set_": lambda y: torch.empty(0).set_(y),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("turn", ["fresh", "again"])
def test_copies(name: str, turn: str) -> None:
    if turn == "again":
        call(-X)
    y = COPIES[name](call())
    call(-X)
    torch.testing.assert_close(y, RIGHT)


@pytest.mark.parametrize("made", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_results_are_bound_to_no_earlier_mode(
    made: Callable[[], Any], mode: Callable[[], Any]
) -> None:
    """Whatever the mode in which the memory was first used, they are as torch's new tensors."""
    with made():
        address = call().data_ptr()
    with mode():
        y, plain = call(), torch.empty(0)
    assert y.data_ptr() == address
    for fact in ("is_inference", "_is_view"):
        assert getattr(y, fact)() == getattr(plain, fact)(), fact
    for fact in ("is_leaf", "requires_grad", "grad_fn"):
        assert getattr(y, fact) == getattr(plain, fact), fact
    if y.is_inference():
        return
    assert y._version == 0
    factor = torch.ones((), requires_grad=True)
    y.mul_(factor)
    y.sum().backward()
    assert factor.grad is not None
    torch.testing.assert_close(factor.grad, RIGHT.sum(), rtol=1e-3, atol=1e-1)
    leaf = call().requires_grad_()
    (2 * leaf).sum().backward()
    assert leaf.grad is not None
    assert bool((leaf.grad == 2).all())


def test_torchs_default_device_does_not_matter() -> None:
    address = call().data_ptr()
    with torch.device("meta"):
        y = call()
    assert (y.data_ptr(), y.device.type) == (address, "cpu")
    torch.testing.assert_close(y, RIGHT)
