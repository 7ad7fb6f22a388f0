"""What a small repeated call takes beside computing: counted, for time is another on every machine.

What it takes in microseconds beside torch's is measured on a GPU (``tests/gpu/test_host_cost.py``).
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from tests.small_calls import Small, chains, five, plain
from transfuse import front, lifted
from transfuse.stages import group_norm, scale, sigmoid

PLAIN, CHAINS, FIVE = list(plain("cpu")), list(chains("cpu")), list(five("cpu"))


def names(calls: list[Small]) -> list[str]:
    return [each.name for each in calls]


def counted(call: Callable[[], object]) -> Counter[str]:
    """The functions of Python that one call enters, by name."""
    found: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code.co_qualname if sys.version_info >= (3, 11) else "call"] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("each", PLAIN, ids=names(PLAIN))
def test_functions_of_a_plain_call(each: Small) -> None:
    for _ in range(3):
        each.ours()
    found = counted(each.ours)
    assert found.total() <= 15, found


@pytest.mark.parametrize("each", CHAINS, ids=names(CHAINS))
def test_functions_of_a_chain(each: Small) -> None:
    """Stages are made anew, and nothing is built, named or hashed again."""
    for _ in range(3):
        each.ours()
    found = counted(each.ours)
    assert found.total() <= 80, found
    assert not any("Chain" in name or "lift" in name.split(".") for name in found), found


@pytest.mark.parametrize("each", FIVE, ids=names(FIVE))
def test_functions_of_an_operator(each: Small) -> None:
    for _ in range(3):
        each.ours()
    found = counted(each.ours)
    assert found.total() <= 40, found


@pytest.mark.parametrize("each", FIVE, ids=names(FIVE))
def test_functions_of_an_operator_with_out(each: Small) -> None:
    out = each.ours()
    call = partial(each.ours, out=out)
    for _ in range(3):
        call()
    found = counted(call)
    assert found.total() <= 44, found


def dispatched(x: Tensor, weight: Tensor) -> Tensor:
    """A call as compiled graphs make it, with lists that are new each time."""
    line, sizes = "conv_transpose1d -> relu", ([2], [1], [0], [1])
    y: Tensor = torch.ops.transfuse.chain(x, weight, [], [], line, *sizes, 1, "ieee", "cpu")
    return y


def test_functions_of_a_call_by_the_dispatcher() -> None:
    """It runs what an earlier call has settled, as calls by weight do."""
    x, weight = torch.randn(1, 4, 8), torch.randn(4, 4, 4)
    for _ in range(3):
        dispatched(x, weight)
    found = counted(lambda: dispatched(x, weight))
    assert found.total() <= 60, found


def test_weights_in_turn_by_the_dispatcher() -> None:
    """What is settled serves all tensors that lie alike, each with its own values."""
    x = torch.randn(1, 4, 8)
    weights = [torch.randn(4, 4, 4) for _ in range(3)]
    for round in range(3):
        for weight in weights:
            wanted = torch.conv_transpose1d(x, weight, stride=2, padding=1).relu()
            assert (dispatched(x, weight) - wanted).abs().max() < 1e-5
            weight.mul_(round + 2)


def test_what_is_kept_of_stages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1, 2, 3), torch.randn(2, 2, 2)
    for name in ("_outlines", "_chains"):
        monkeypatch.setattr(lifted, name, {})
    monkeypatch.setattr(lifted, "MOST", 5)
    for number in range(20):
        transfuse.conv_transpose(x, w, then=[scale(float(number)), sigmoid()])
        assert len(lifted._outlines) <= 5
        assert len(lifted._chains) <= 5


def test_no_tensor_is_kept() -> None:
    """Neither a stage's nor a call's own: what is kept tells others of their kind."""
    import weakref

    x, w, b = torch.randn(1, 4, 3), torch.randn(4, 4, 2), torch.randn(4)
    gone = [weakref.ref(each) for each in (x, w, b)]
    for _ in range(3):
        transfuse.conv_transpose(x, w, b, then=[group_norm(2, b, b)])
    del x, w, b
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


@pytest.mark.parametrize("each", [*PLAIN, *CHAINS, *FIVE], ids=names([*PLAIN, *CHAINS, *FIVE]))
def test_other_values_in_the_same_memory(each: Small) -> None:
    """The same objects again, with other values: inputs, weights and operands are all read anew."""
    right = [each.ours() for _ in range(3)]
    assert all(y.equal(right[0]) for y in right)
    kept = [tensor.clone() for tensor in each.tensors]
    for changed in range(len(kept)):
        each.tensors[changed].data.mul_(0.5).add_(0.25)
        front._checked.clear()
        fresh = each.ours()
        assert each.ours().equal(fresh)
        each.tensors[changed].data.copy_(kept[changed])
        assert each.ours().equal(right[0])


def test_shapes_in_turn() -> None:
    """Other inputs with the same weight, turn and turn about: each is found again."""
    w = torch.randn(4, 4, 4)
    inputs = [torch.randn(n, 4, size) for n in (1, 2) for size in (5, 8)]
    strided = torch.randn(2, 4, 16)[:, :, ::2]
    right = [transfuse.conv_transpose1d(x, w, stride=2) for x in (*inputs, strided)]
    for _ in range(3):
        for x, expected in zip((*inputs, strided), right, strict=True):
            assert transfuse.conv_transpose1d(x, w, stride=2).equal(expected)
            assert transfuse.conv_transpose1d(-x, w, stride=2).equal(-expected)
            negated = torch._neg_view(x)
            assert transfuse.conv_transpose1d(negated, w, stride=2).equal(-expected)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "chains"])
def test_beside_torch(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In turns, so that what else the machine does meets both; four times torch's at the worst."""

    def micros(call: Callable[[], Tensor]) -> float:
        start = perf_counter()
        for _ in range(20):
            call()
        return 1e6 * (perf_counter() - start) / 20

    lines, worst = [], 0.0
    for each in PLAIN if kind == "plain" else CHAINS:
        pairs = [(micros(each.ours), micros(each.theirs)) for _ in range(60)][10:]
        ratio = median(a / b for a, b in pairs)
        ours, theirs = (min(side) for side in zip(*pairs, strict=True))
        lines.append(f"{each.name}: {ours:.1f} us, torch {theirs:.1f} us, {ratio:.2f}")
        worst = max(worst, ratio)
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert worst < 4, "\n".join(lines)
