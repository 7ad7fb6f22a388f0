"""Passes predicted and timed: what is run, what is made of the times, and what is refused."""

import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from tests.bench.decreed import FakeCeilings
from transfuse import explain, nn
from transfuse.backends.base import Part
from transfuse.bench import clock as clocks
from transfuse.bench import passes
from transfuse.bench.ceilings import Ceilings
from transfuse.bench.passes import measured
from transfuse.chain import Chain
from transfuse.cli import output
from transfuse.explanation import explained
from transfuse.operators import OPERATORS
from transfuse.plan import Pass
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, group_norm, lp_pool, sigmoid, softmax
from transfuse.timings import PassTiming

LINE = "n2 ci4 co8 i6x6 k4 s2 p1 fp32 cpu"
CHAIN = Chain(conv_transpose(2), sigmoid(), lp_pool(2, 2))


@pytest.fixture(autouse=True)
def decreed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Ceilings that take no time; with what they were asked for."""
    asked: list[tuple[Any, ...]] = []

    def ceilings(*given: Any) -> FakeCeilings:
        asked.append(given)
        return FakeCeilings(copy=1e9, matmul=1e10, special=1e8)

    monkeypatch.setattr(passes, "Ceilings", ceilings)
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)
    return asked


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, command_line: Any) -> Any:
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "width", 80)

    return partial(command_line, "explain")


def test_each_pass_is_predicted_at_the_ceilings_and_timed(decreed: list[Any]) -> None:
    before = explained(CHAIN, Problem.parse(LINE))
    found = measured(before)
    assert replace(found, timings=None) == before
    timings = found.timings
    assert timings is not None
    assert [each.does for each in timings.passes] == [each.does for each in found.plan.passes]
    for each, timed in zip(found.plan.passes, timings.passes, strict=True):
        expected = max(each.flops / 1e10, each.bytes / 1e9, each.special / 1e8)
        assert timed.predicted == expected > 0
        assert timed.measured is not None
        assert timed.measured > 0
    assert timings.call > 0
    assert timings.floor >= timings.floor_of_definition > 0
    assert (timings.bandwidth, timings.flops, timings.special) == (1e9, 1e10, 1e8)
    [(device, _, only)] = decreed
    assert (device, only) == ("cpu", "fp32"), "no other class is measured"


def test_what_is_timed_changes_nothing_of_the_call() -> None:
    layer = nn.FusedConvTranspose(4, 8, 4, then=[torch.nn.BatchNorm2d(8)])
    before = {name: each.clone() for name, each in layer.state_dict().items()}
    found = measured(explain(layer, torch.randn(2, 4, 6, 6)))
    assert found.timings is not None
    assert len(found.timings.passes) == len(found.plan.passes) > 1
    assert all(each.equal(before[name]) for name, each in layer.state_dict().items())


@pytest.mark.parametrize("backend", ["cpu", "eager"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_every_operator_on_the_command_line(
    cli: Any, slug: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", backend)
    status, printed, error = cli(slug, "small", "--measure", "--json")
    assert (status, error) == (0, "")
    facts = json.loads(printed)
    assert facts["chosen"] == backend
    timed = facts["measured"]["passes"]
    assert [each["does"] for each in timed] == [each["does"] for each in facts["plan"]["passes"]]
    assert all(each["measured_seconds"] > 0 < each["predicted_seconds"] for each in timed)
    assert all(each["kernels"] == [] for each in timed)
    assert facts["measured"]["call_seconds"] > 0


def test_any_chain_in_80_columns(cli: Any) -> None:
    words = ("conv_transpose", LINE, "--then", "sigmoid, group_norm(4), lp_pool(2, 2)", "--bias")
    plain = cli(*words)[1]
    status, printed, error = cli(*words, "--measure")
    assert (status, error) == (0, "")
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    head, found, table = printed.partition("predicted and measured here")
    assert head.split() == plain.split()
    assert found
    assert re.search(r"\btotal +[\d.]+ +[\d.]+", table)
    for line in (
        r"the call as it is made: [\d.]+ ms",
        r"floor here: [\d.]+ ms in passes, [\d.]+ ms by the definition",
        r"ceilings: 10 GFLOP/s, 1 GB/s, special functions 0\.1 G/s",
    ):
        assert re.search(f"^{line} *$", table, re.MULTILINE), line


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("max-max-sum", "benchmark", "tf32", "cuda:sm90"), "device 'cuda' is not here"),
        (("max-max-sum", "small", "--backward"), "passes of gradients are planned, and not timed"),
        (("conv_transpose", LINE.replace("n2", "n0")), "its result has no values"),
        (("conv_transpose", LINE.replace("fp32", "fp32 strided")), "lie in some other way"),
        (("conv_transpose", LINE.replace("cpu", "xpu")), "device 'xpu' is not here"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(
    cli: Any, words: tuple[str, ...], why: str
) -> None:
    if "cuda" in why and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    status, printed, error = cli(*words, "--measure")
    assert status == 2
    assert printed == ""
    assert re.match(rf"error: cannot measure n\d.*: .*{re.escape(why)}", error)


def test_another_gpu_is_none_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "place", lambda device: "cuda:sm80")
    found = explained(CHAIN, Problem.parse(LINE.replace("cpu", "cuda:sm90")))
    with pytest.raises(
        ValueError, match=r"cannot measure .*: the GPU of this machine is cuda:sm80"
    ):
        measured(found)


def test_an_interpreter_tells_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(explained(CHAIN, Problem.parse(LINE)), chosen="triton")
    monkeypatch.setattr("transfuse.settings.interpreted", lambda: True)
    with pytest.raises(ValueError, match="Triton's interpreter runs it"):
        measured(found)


def test_parts_are_put_to_their_passes() -> None:
    plan = [Pass("copy weights", 0, 1, 1), Pass("pool", 0, 1, 1), Pass("convolve", 1, 1, 1)]
    parts = [Part(1, "pack"), Part(2, "convolve"), Part(2, "carefully")]
    rounds = [[*zip(parts, seconds, strict=True)] for seconds in ((1, 9, 2), (3, 4, 2), (2, 5, 2))]
    assert passes._passes(plan, [0.1, 0.2, 0.3], rounds) == (
        PassTiming("copy weights", 0.1, None),
        PassTiming("pool", 0.2, 2, (("pack", 2),)),
        PassTiming("convolve", 0.3, 7, (("convolve", 5), ("carefully", 2))),
    )


def test_kernels_are_shown_below_their_pass() -> None:
    found = measured(explained(CHAIN, Problem.parse(LINE)))
    assert found.timings
    rows = (
        PassTiming("copy weights", 0.1, None),
        PassTiming("pool", 0.0002, 0.00025, (("pack", 0.00025),)),
    )
    text = str(replace(found, timings=replace(found.timings, passes=rows)))
    table = [line.split() for line in text.partition("measured here")[2].splitlines()]
    assert ["copy", "weights", "100", "with", "the", "next"] in table
    assert ["pool", "0.2", "0.25"] in table
    assert ["pack", "0.25"] in table
    assert ["total", "100", "0.25"] in table


def test_a_host_clock_takes_the_times_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 15.0, 18.0])
    monkeypatch.setattr(clocks, "perf_counter", lambda: next(now))
    parts = [Part(0), Part(1, seconds=0.5), Part(2)]
    assert clocks.HostClock().laps(iter(parts)) == [
        (parts[0], 1.0),
        (parts[1], 0.5),
        (parts[2], 3.0),
    ]


def test_a_clock_of_a_gpu_asks_for_an_event_behind_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In milliseconds since the one before; caches are swept once, ahead of the first."""
    did: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            did.append("event")
            self.at = len(did) ** 2

        def elapsed_time(self, other: "Event") -> float:
            return float(other.at - self.at)

    class Swept:
        def __len__(self) -> int:
            return 8 * clocks.SWEPT

        def zero_(self) -> None:
            did.append("sweep")

    def parts() -> Any:
        for at in range(2):
            did.append(f"part {at}")
            yield Part(at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: did.append("wait"))
    clock = object.__new__(clocks.CudaClock)
    clock.sweep = Swept()  # type: ignore[assignment]
    found = clock.laps(parts())
    assert did == ["wait", "sweep", "event", "part 0", "event", "part 1", "event", "wait"]
    assert found == [(Part(0), (25 - 9) / 1e3), (Part(1), (49 - 25) / 1e3)]


def test_statistics_of_training_are_timed_with_their_pass() -> None:
    chain = Chain(conv_transpose(2), batch_norm("m", "v", training=True), group_norm(2))
    found = measured(explained(chain, Problem.parse(LINE)))
    assert found.timings
    assert all(each.measured for each in found.timings.passes)


def test_ceilings_of_this_machine_by_one_class(
    quick_ceilings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "Ceilings", Ceilings)
    chain = Chain(conv_transpose(2), softmax("channels"))
    found = measured(explained(chain, Problem.parse(LINE.replace("fp32", "fp64"))))
    assert found.timings
    assert found.timings.flops > 1e6 < found.timings.bandwidth
    assert found.timings.special
    assert found.timings.special > 1e6
