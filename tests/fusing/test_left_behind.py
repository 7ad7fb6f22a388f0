"""What a forward does beside computing is done in every call, once, and not when it is fused."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transfuse
from tests.fusing.alike import drawn, expect_alike, made

X = drawn(2, 4, 5)
SEEN: list[Any] = []
WINDOWS: dict[int, Tensor] = {}
CALLS = 0


class Store:
    """No module, as caches and collectors are."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None
        self.values: deque[Any] = deque(maxlen=2)
        self.by_name: dict[str, list[Any]] = {"y": []}


class Up(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 3, 2, stride=2)
        self.stores = (Store(),)

    def forward(self, x: Tensor) -> Tensor:
        return self.note(torch.relu(self.up(x)))

    def note(self, y: Tensor) -> Tensor:
        raise NotImplementedError


def counted_in_an_object(self: Any, y: Tensor) -> Tensor:
    self.stores[0].calls += 1
    return y


def kept_in_an_object(self: Any, y: Tensor) -> Tensor:
    self.stores[0].last = y.detach()
    return y


def added_to_a_queue(self: Any, y: Tensor) -> Tensor:
    self.stores[0].values.append(y.mean())
    return y


def added_deep_inside(self: Any, y: Tensor) -> Tensor:
    self.stores[0].by_name["y"].append(y)
    return y


def counted_in_the_class(self: Any, y: Tensor) -> Tensor:
    type(self).calls += 1
    return y


def counted_in_a_global(self: Any, y: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return y


def added_to_a_global(self: Any, y: Tensor) -> Tensor:
    SEEN.append(y)
    return y


def cached_in_a_global(self: Any, y: Tensor) -> Tensor:
    if y.dim() not in WINDOWS:
        WINDOWS[y.dim()] = torch.ones(10, dtype=y.dtype)
    return y * WINDOWS[y.dim()]


def _enclosing() -> tuple[Callable[..., Any], list[Any]]:
    seen: list[Any] = []

    def added_to_what_encloses(self: Any, y: Tensor) -> Tensor:
        seen.append(y)
        return y

    return added_to_what_encloses, seen


added_to_what_encloses, ENCLOSED = _enclosing()
NOTES: dict[Callable[..., Any], str] = {
    counted_in_an_object: "changes what is in self.stores",
    kept_in_an_object: "changes what is in self.stores",
    added_to_a_queue: "changes what is in self.stores",
    added_deep_inside: "changes what is in self.stores",
    counted_in_the_class: "changes what is in self.calls",
    counted_in_a_global: "changes what is in the global CALLS",
    added_to_a_global: "changes what is in the global SEEN",
    cached_in_a_global: "changes what is in the global WINDOWS",
    added_to_what_encloses: "changes what is in the enclosing seen",
}


def _seen(model: Any) -> list[Any]:
    """All that a forward may have left somewhere, and for tensors that they are some."""
    store = model.stores[0]
    values = (*store.values, *store.by_name["y"], *SEEN, *ENCLOSED, *WINDOWS.values())
    kinds = [*map(type, values), type(store.last)]
    return [store.calls, type(model).calls, CALLS, kinds]


def _forget() -> None:
    global CALLS
    CALLS = 0
    for each in (SEEN, WINDOWS, ENCLOSED):
        each.clear()


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.__name__)
def test_what_is_left_outside_of_modules(note: Callable[..., Any]) -> None:
    found = []
    for fusing in (False, True):
        _forget()
        model = made(type("Noted", (Up,), {"note": note}))
        before = _seen(model)
        if fusing:
            model = transfuse.fuse(model)
            assert _seen(model) == before
        for _ in range(3):
            model(X)
        found.append(_seen(model))
    _forget()
    assert found[0] == found[1] != before
    [row] = model.explain().rows
    assert row.fused
    assert NOTES[note] in row.why


def test_a_value_kept_where_nobody_looks() -> None:
    """In the default of an argument, here: only that it is still there tells."""

    class Kept(Up):
        def note(self, y: Tensor, kept: Any = [None]) -> Tensor:  # noqa: B006 as forwards do
            kept[0] = y
            return y

    fused = transfuse.fuse(made(Kept))
    fused(X)
    assert "keeps a value of the call for later" in fused.explain().rows[0].why
    [kept] = Kept.note.__defaults__ or ()
    assert type(kept[0]) is Tensor


def test_logs_are_written_in_every_call(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("a model's")

    class Logging(Up):
        def note(self, y: Tensor) -> Tensor:
            log.debug("%s", "seldom")
            log.warning("called")
            return y

    fused = transfuse.fuse(made(Logging))
    assert not caplog.messages
    for _ in range(3):
        fused(X)
    assert caplog.messages == ["called"] * 3
    why = fused.explain().rows[0].why
    assert "test_left_behind.py:" in why
    assert "writes to a log" in why


def test_what_leaves_nothing_is_fused() -> None:
    """A function that calls itself holds its own variables, and a silent log changes nothing."""
    log = logging.getLogger("a model's")

    class Again(Up):
        def note(self, y: Tensor) -> Tensor:
            def repeated(y: Tensor, times: int) -> Tensor:
                return repeated(y * 2, times - 1) if times else y

            log.debug("%s", "seldom")
            return repeated(y, 2)

    fused = transfuse.fuse(made(Again))
    expect_alike(fused, made(Again), X)
    assert fused.explain().rows[0].operations == ("conv_transpose1d", "relu", "mul", "mul")
