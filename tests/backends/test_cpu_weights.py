"""Packs are found by values; they refer to memory, not to tensors, which torch may swap."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from transfuse.backends.cpu import weights

X = torch.randn(1, 3, 5, 5)


def fresh(*shape: int) -> Tensor:
    return torch.randn(shape or (3, 4, 3, 3))


def right(w: Tensor) -> None:
    """A call with these weights gives what torch gives."""
    with torch.no_grad():
        y = transfuse.conv_transpose2d(X.to(w.dtype), w, backend="cpu")
        torch.testing.assert_close(y, F.conv_transpose2d(X.to(w.dtype), w))


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    weights._kept.clear()
    weights._places.clear()
    yield
    weights._kept.clear()


def test_weights_can_be_swapped() -> None:
    one, other = nn.Parameter(fresh()), nn.Parameter(fresh())
    values = one.detach().clone()
    right(one)
    right(other)
    torch.utils.swap_tensors(one, other)
    assert other.equal(values)
    for _ in range(2):
        right(one)
        right(other)


@pytest.fixture
def swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


CONVERSIONS: dict[str, Callable[[nn.Module], Any]] = {
    "double": lambda module: module.double(),
    "to": lambda module: module.to(torch.float64),
    "half and back": lambda module: module.half().float(),
    "channels_last": lambda module: module.to(memory_format=torch.channels_last),
    "load_state_dict": lambda module: module.load_state_dict({"weight": fresh()}),
}


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("name", CONVERSIONS)
def test_modules_can_be_converted(name: str) -> None:
    module = nn.ConvTranspose2d(3, 4, 3, bias=False)
    right(module.weight)
    CONVERSIONS[name](module)
    right(module.weight)


def sources() -> list[int | None]:
    """Where the weights of each pack lie, the longest unused first; None where they are gone."""
    found = [each.source() for each in weights._kept.values()]
    return [None if each is None else each.data_ptr() for each in found]


def test_packs_go_with_the_memory_but_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    right(fresh())
    [one] = weights._kept.values()
    monkeypatch.setattr(weights, "GONE", 3 * one.nbytes)
    for _ in range(20):
        right(fresh())
    gc.collect()
    right(last := fresh())
    assert sources() == [None, None, None, last.data_ptr()]
    monkeypatch.setattr(weights, "GONE", 0)
    right(other := fresh())
    assert sources() == [last.data_ptr(), other.data_ptr()]


def test_packs_stay_with_the_memory() -> None:
    """The tensor may go, as long as another one lies there."""
    w = fresh()
    right(w)
    view, address = w[:], w.data_ptr()
    del w
    gc.collect()
    right(fresh(3, 5, 3, 3))
    assert address in sources()
    right(view)


def test_other_weights_at_the_same_address() -> None:
    memory = torch.empty(1000)
    for shape in ((3, 4, 3, 3), (3, 12, 3, 1), (3, 4, 3, 3)):
        w = memory[: torch.Size(shape).numel()].view(shape)
        w.copy_(fresh(*shape))
        for _ in range(2):
            right(w)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The weights that were packed."""
    packed, pack = [], weights._pack

    def counting(*args: Any) -> Any:
        packed.append(args[3])
        return pack(*args)

    monkeypatch.setattr(weights, "_pack", counting)
    return packed


def test_weights_computed_for_each_call_are_packed_once(packs: list[Tensor]) -> None:
    """Wherever they lie: those of an earlier call are held, so that each has its own address."""
    direction, held = fresh(), []
    for _ in range(5):
        held.append(direction * 2)
        right(held[-1])
    assert len(packs) == 1
    held.clear()
    right(direction * 2)
    assert len(packs) == 1
    right(direction * 3)
    assert len(packs) == 2


def test_weights_computed_in_turn_in_the_same_memory(packs: list[Tensor]) -> None:
    """As those of two layers of a shape may be, each freed when its layer is done."""
    layers = [fresh(), fresh()]
    for _ in range(4):
        for each in layers:
            right(each * 2)
    assert len(packs) == 2


def test_the_pack_of_what_was_written_over_goes(packs: list[Tensor]) -> None:
    w = fresh()
    for count in range(1, 5):
        right(w)
        right(w)
        assert len(packs) == count
        assert len(weights._kept) == 1
        w.add_(1)


def test_where_weights_lay_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, packs: list[Tensor]
) -> None:
    monkeypatch.setattr(weights, "PACKS", 2)
    held = [torch.ones(3, 4, 3, 3) for _ in range(20)]
    for w in held * 2:
        right(w)
        assert len(weights._places) <= 8
    assert len(packs) == 1


def test_weights_that_another_thread_writes_to_while_they_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, packs, pack = fresh(), [], weights.pack

    def disturbed(*args: Any) -> Tensor:
        memory = pack(*args)
        if not packs:
            weight.add_(1)
        packs.append(args[2].data_ptr())
        return memory

    monkeypatch.setattr(weights, "pack", disturbed)
    with torch.no_grad():
        y = transfuse.conv_transpose2d(X, weight, backend="cpu")
    assert len(packs) == 2
    assert packs[1] != weight.data_ptr(), "the second time a copy"
    torch.testing.assert_close(y, F.conv_transpose2d(X, weight))


def test_packs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PACKS", 3)
    alive = [fresh() for _ in range(8)]
    for w in alive:
        right(w)
        assert len(weights._kept) <= 3
    assert sources() == [w.data_ptr() for w in alive[-3:]]


class Cycle:
    """Something that only the collector frees."""

    def __init__(self, end: Callable[[], Any]) -> None:
        self.end, self.me = end, self

    def __del__(self) -> None:
        self.end()


def finished(work: Callable[[], Any]) -> bool:
    """Whether something ends at all: in a thread, since what waits for itself never does."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(120)
    return not worker.is_alive()


def test_the_collector_may_call_amid_a_call() -> None:
    """Objects whose end makes a call go while packs are looked through."""
    alive = [fresh() for _ in range(20)]
    calls = []

    def work() -> None:
        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for w in alive * 3:
                Cycle(lambda: calls.append(right(fresh())))
                right(w)
        finally:
            gc.set_threshold(*before)

    assert finished(work)
    gc.collect()
    assert len(calls) == 60


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs Unix")
def test_a_signals_handler_may_call_amid_a_call() -> None:
    alive = [fresh() for _ in range(20)]
    calls = []

    def handler(*_: Any) -> None:
        calls.append(right(fresh()))
        signal.setitimer(signal.ITIMER_REAL, 0.002)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    try:
        while len(calls) < 30:
            for w in alive:
                right(w)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_pack_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few, so that each lets go of what the others have packed."""
    monkeypatch.setattr(weights, "PACKS", 2)
    alive = [fresh() for _ in range(6)]
    faults: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for turn in range(60):
                right(alive[(first + turn) % len(alive)])
        except BaseException as fault:
            faults.append(fault)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    assert not faults


def test_a_pack_may_be_let_go_of_while_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads pack the same values; while the second pack takes the place of the first, whose
    memory is freed, a third thread lets go of all."""
    pack = weights._pack

    class Clears:
        def __del__(self) -> None:
            weights._kept.clear()

    def twice(content: weights.Content, *arguments: Any) -> weights.Packed:
        weights._kept[content] = first = pack(content, *arguments)
        first.freed = Clears()  # type: ignore[attr-defined]
        return pack(content, *arguments)

    monkeypatch.setattr(weights, "_pack", twice)
    for _ in range(2):
        right(fresh())
    assert weights._by_use() == list(weights._kept.values())
