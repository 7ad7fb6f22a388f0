"""Builds compiled side by side: each once, whoever wants it; what fails is told to all of them."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import machine_code, sequence
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.store import shelves
from transfuse.backends.triton.sweeps import prepare
from transfuse.errors import Declined
from transfuse.maths import exp
from transfuse.maths.expr import X
from transfuse.sweeps import Each, View

QUICK = Kernel("a_module", "quick", 0)
SLOW = Kernel("a_module", "slow", 0, slow=True)


@dataclass
class Build:
    """One that waits until all of its kind are being compiled."""

    key: str
    together: threading.Barrier
    fault: str = ""
    kernel: Kernel = QUICK
    compiled: list[str] = field(default_factory=list)
    forgotten: int = 0

    def entry(self) -> Any:
        self.compiled.append(self.key)
        self.together.wait(timeout=60)
        if self.fault:
            raise Declined(self.fault)
        return f"entry {self.key}"

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture(autouse=True)
def nothing_begun() -> Iterator[None]:
    machine_code._begun_by_key.clear()
    yield
    assert not machine_code._begun_by_key, "what was compiled is still held"


def test_builds_are_compiled_side_by_side() -> None:
    """Each waits for the others: one after another, none would ever end."""
    together = threading.Barrier(5)
    builds: list[Any] = [Build(key, together) for key in "abcde"]
    found = machine_code.compiled(builds)
    assert found == {key: f"entry {key}" for key in "abcde"}
    assert [each.forgotten for each in builds] == [1] * 5, "texts of all levels are held"


def test_equal_builds_are_compiled_once() -> None:
    alone = threading.Barrier(1)
    builds: list[Any] = [Build("a", alone), Build("a", alone)]
    assert machine_code.compiled(builds) == {"a": "entry a"}
    assert [each.compiled for each in builds] in ([["a"], []], [[], ["a"]])


def test_slow_kernels_are_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front end takes one after another: the rest of the compiler has them for longest."""
    begun: list[str] = []
    start = machine_code._begun

    def noted(build: Any) -> Any:
        begun.append(build.key)
        return start(build)

    monkeypatch.setattr(machine_code, "_begun", noted)
    alone = threading.Barrier(1)
    builds: list[Any] = [Build("a", alone), Build("b", alone, kernel=SLOW), Build("c", alone)]
    assert list(machine_code.compiled(builds)) == ["b", "a", "c"]
    assert begun == ["b", "a", "c"]


def test_what_fails_is_raised_and_tried_anew() -> None:
    alone = threading.Barrier(1)
    wrong: Any = Build("b", alone, "wrong code")
    for _ in range(2):
        with pytest.raises(Declined, match="wrong code"):
            machine_code.compiled([Build("a", alone), wrong])  # type: ignore[list-item]
    assert wrong.compiled == ["b", "b"]


def test_what_was_foreseen_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "holds", lambda key: key == "stored")
    begun = threading.Barrier(2)
    build: Any = Build("a", begun)
    stored: Any = Build("stored", begun)
    machine_code.foresee([build, stored], 0)
    assert list(machine_code._begun_by_key) == ["a"]
    begun.wait(timeout=60)
    assert machine_code.compiled([Build("a", threading.Barrier(1))]) == {"a": "entry a"}  # type: ignore[list-item]
    assert build.compiled == ["a"]
    assert stored.compiled == []


def test_sweeps_foresee_what_their_calls_will_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very keys: otherwise all would be compiled twice."""
    foreseen: list[str] = []
    monkeypatch.setattr(
        machine_code, "foresee", lambda builds, device: foreseen.extend(b.key for b in builds)
    )
    monkeypatch.setattr(sequence, "capability", lambda device: 90)
    dense = View(0, torch.float16, (4, 40), (40, 1))
    out = View(2, torch.float32, (4, 40), (40, 1))
    made = prepare(Each(out, exp(X), (("x", dense),)), torch.device("cuda", 0))
    kinds = (torch.float16, torch.float64, torch.float32)
    memory = [torch.empty(4, 40, dtype=kind, device="meta") for kind in kinds]
    assert foreseen
    assert foreseen == [build.key for build in made.build(memory, 90)]
