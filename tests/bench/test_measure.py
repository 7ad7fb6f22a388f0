"""The method: no time without a right result, rounds interleaved, floors from the run itself."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.bench.decreed import FakeCeilings
from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import HostClock
from transfuse.bench.measure import FEWEST_ROUNDS, Ours, measure
from transfuse.bench.peers import Missing, Runner
from transfuse.bench.peers.torch_eager import TorchEager, as_written
from transfuse.bench.precision import PRECISIONS, Precision, precisions
from transfuse.bench.record import Run
from transfuse.bench.session import Session, classes, variants
from transfuse.bench.subjects import Subject, subjects
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.plan import Pass
from transfuse.stages import conv_transpose, sigmoid

MAX = "conv-transpose3d-max-max-sum"
SIGMOID = Subject(
    "sigmoid",
    "sigmoid",
    Chain(conv_transpose(2), sigmoid()),
    Case.parse("n2 ci4 co8 i6x6 k4 s2 p1 fp32 cpu"),
)


@dataclass(frozen=True)
class Peer:
    """torch eager with one thing changed."""

    name: str
    change: object
    calls: list

    def build(self, work):
        right = as_written(work)

        def run(x):
            self.calls.append(self.name)
            return self.change(right(x))

        return Runner(run)


def rows(*peers, rounds=6, ceilings=None, precision=PRECISIONS["fp32"], case="small"):
    run = Run("r", "", "", "cpu", 0, None, {}, [], {})
    [subject] = subjects([MAX], [case], [], "cpu") if case == "small" else [SIGMOID]
    everyone = {"transfuse": Ours(), "torch eager": TorchEager(), **{p.name: p for p in peers}}
    found = measure(run, subject, precision, everyone, ceilings or FakeCeilings(), rounds, 60)
    return {row.variant: row for row in found}


def test_a_right_result_gets_times_ratio_memory_and_first_call():
    found = rows()
    ours, eager = found["transfuse"], found["torch eager"]
    assert ours.status == eager.status == "ok"
    assert len(ours.samples) == len(eager.samples) == len(ours.host_samples) == 6
    assert ours.time.p20 <= ours.time.median <= ours.time.p80
    assert ours.ratio is None
    assert eager.ratio.median > 0
    assert ours.backend == "cpu"
    assert ours.first_call > 0
    assert ours.error <= 1
    assert ours.flops > 0 < ours.bytes


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("zeros", torch.zeros_like, "times its budget"),
        ("off by 1e-3", lambda y: y + 1e-3, "times its budget"),
        ("lower precision", lambda y: y.bfloat16().float(), "times its budget"),
        ("NaN", lambda y: y * float("nan"), "NaN in the wrong places"),
        ("part", lambda y: y[:1], "shape"),
    ],
)
def test_a_wrong_kernel_gets_no_time(name, change, why):
    row = rows(Peer(name, change, []))[name]
    assert row.status == "wrong"
    assert why in row.reason
    assert row.time is None
    assert row.samples == []


def test_the_gate_follows_the_precision_class():
    """What is wrong in ieee fp32 is right by the ulp of tf32, and never the other way round."""
    coarse = Peer("coarse", lambda y: y * (1 + 2**-12), [])
    by_tf32 = Precision("fp32", "fp32", PRECISIONS["tf32"].ulp)  # on a CPU, which has no tf32
    assert rows(coarse)["coarse"].status == "wrong"
    assert rows(coarse, precision=by_tf32)["coarse"].status == "ok"


def test_a_missing_peer_and_a_failing_one_are_rows_that_say_why():
    def absent(_):
        raise Missing("quantum is not installed")

    def broken(_):
        raise RuntimeError("no kernel image\nand a long trace")

    found = rows(Peer("absent", absent, []), Peer("broken", broken, []))
    assert (found["absent"].status, found["absent"].reason) == (
        "missing",
        "quantum is not installed",
    )
    assert found["broken"].status == "failed"
    assert found["broken"].reason == "RuntimeError: no kernel image"
    assert found["transfuse"].status == "ok"


def test_rounds_are_interleaved_and_take_turns_to_be_first():
    calls = []
    rows(Peer("a", lambda y: y, calls), Peer("b", lambda y: y, calls), rounds=8)
    timed = calls[-16:]
    for i in range(0, 16, 2):
        assert {timed[i], timed[i + 1]} == {"a", "b"}
    assert {"a", "b"} == set(timed[::2])


def test_time_ends_the_rounds_but_never_before_the_fewest():
    run = Run("r", "", "", "cpu", 0, None, {}, [], {})
    [subject] = subjects([MAX], ["small"], [], "cpu")
    [row] = measure(
        run, subject, PRECISIONS["fp32"], {"transfuse": Ours()}, FakeCeilings(), 50, 0.0
    )
    assert len(row.samples) == FEWEST_ROUNDS


def test_a_time_below_the_floor_is_flagged_as_impossible():
    slow = rows(ceilings=FakeCeilings(matmul=1.0))["transfuse"]
    assert slow.impossible
    assert slow.of_floor > 1
    fast = rows(ceilings=FakeCeilings(copy=1e18, matmul=1e18))["transfuse"]
    assert not fast.impossible
    assert fast.of_floor < 1


def test_special_functions_and_passes_raise_the_floor_but_not_the_definitions():
    slow = rows(ceilings=FakeCeilings(copy=1e18, matmul=1e18, special=1.0), case="sigmoid")
    ours = slow["transfuse"]
    outputs = 2 * 8 * 12 * 12
    assert ours.floor == outputs
    assert ours.floor_of_definition < 1e-6
    assert ours.of_floor > 1
    assert not ours.impossible, "whoever has a faster exponential may well pass it"


def test_where_there_is_one_pass_the_floors_are_one():
    found = rows(ceilings=FakeCeilings(copy=1e6, matmul=1e18))["transfuse"]
    assert found.floor == found.floor_of_definition == found.bytes / 1e6


def test_a_pass_finds_in_a_cache_what_another_stored():
    ceilings = FakeCeilings(copy=100.0, matmul=1e18, special=50.0)
    ceilings.moves = {100: 800.0, 500: 400.0, 2**20: 200.0}
    assert ceilings.seconds(Pass("", 0, 600, 200), "fp32") == 2.0, "at the rate of 500 bytes"
    assert ceilings.seconds(Pass("", 0, 300, 100), "fp32") == 0.5, "at that of 100"
    assert ceilings.seconds(Pass("", 0, 2**20, 0), "fp32") == 2**20 / 200
    assert ceilings.seconds(Pass("", 0, 600, 200, special=150), "fp32") == 3.0
    assert ceilings.floor_of_definition(0, 800, "fp32") == 8.0


def test_special_functions_whose_rate_is_not_known_do_not_count():
    ceilings = FakeCeilings(copy=100.0, matmul=10.0)
    ceilings.special = {}
    assert ceilings.seconds(Pass("", 1000, 50, 0, special=10**9), "fp32") == 100


def test_float64_has_exponentials_of_its_own():
    ceilings = FakeCeilings(copy=1e18, matmul=1e18, special=10.0)
    several = Pass("", 0, 0, 0, special=20)
    assert ceilings.seconds(several, "fp64") == 2.0, "at the only rate there is"
    ceilings.special["fp64"] = 5.0
    assert ceilings.seconds(several, "fp64") == 4.0
    assert ceilings.seconds(several, "fp16") == 2.0


def test_the_floor_is_the_larger_of_work_and_traffic():
    ceilings = FakeCeilings(copy=100.0, matmul=10.0)
    assert ceilings.floor_of_definition(1000, 50, "fp32") == 100
    assert ceilings.floor_of_definition(10, 5000, "fp32") == 50


def test_small_traffic_is_held_to_the_best_copy_at_least_as_large():
    ceilings = FakeCeilings(matmul=1e18)
    ceilings.copies = {100: 1e3, 1000: 5e3, 10_000: 1e3}
    assert ceilings.floor_of_definition(1, 50, "fp32") == 50 / 5e3
    assert ceilings.floor_of_definition(1, 5000, "fp32") == 5000 / 1e3
    assert ceilings.floor_of_definition(1, 50_000, "fp32") == 50_000 / 1e3


def test_a_class_may_compute_in_a_wider_one():
    ceilings = FakeCeilings()
    ceilings.products = {"fp64": 2.0, "fp32": 5.0, "bf16": 1.0, "fp16": 9.0}
    assert ceilings.matmul == {"fp64": 2.0, "fp32": 5.0, "bf16": 5.0, "fp16": 9.0}


def test_ceilings_are_measured_on_this_machine(monkeypatch):
    monkeypatch.setattr("transfuse.bench.ceilings.COPIES", {"cpu": (2**16, 2**20)})
    monkeypatch.setattr("transfuse.bench.ceilings.MOVES", {"cpu": (2**16, 2**20)})
    monkeypatch.setattr("transfuse.bench.ceilings.PRODUCTS", {"cpu": (64, 128)})
    ceilings = Ceilings("cpu", HostClock())
    assert [size for size, _ in ceilings.copy] == [2**16, 2**20]
    assert all(rate > 1e6 for _, rate in ceilings.copy)
    assert set(ceilings.matmul) == {each.name for each in precisions("cpu")}
    assert set(ceilings.special) == {"fp32", "fp64"}
    assert all(rate > 1e6 for rate in ceilings.special.values())
    assert [*ceilings.moves] == [2**16, 2**20]
    assert all(rate > 1e6 for rate in ceilings.moves.values())
    before = dict(ceilings.products)
    ceilings.measure()
    assert all(ceilings.products[name] >= rate for name, rate in before.items())


def test_peak_memory_is_what_one_call_takes():
    clock = HostClock()
    size = 64 * 2**20
    peak = clock.peak(lambda: torch.ones(size, dtype=torch.uint8))
    if peak is None:
        pytest.skip("this system does not let a process reset its peak memory")
    # The kernel counts resident pages per thread and adds them up in batches.
    assert 0.95 * size <= peak <= 1.1 * size


def test_precision_classes_put_torch_back_as_it_was():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with PRECISIONS["fp32"].applied():
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark
    with PRECISIONS["tf32"].applied():
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark) == before


def test_names_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown peer 'magic'; known: torch eager"):
        variants(["magic"])
    with pytest.raises(ValueError, match="no precision class 'tf32' here; known: fp32"):
        classes(["tf32"], "cpu")
    with pytest.raises(ValueError, match="unknown precision 'fp8'; known: fp32"):
        classes(["fp8"], "cpu")
    path = Path(tmp_path / "r.jsonl")
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="has results already; --resume"):
        Session([], [], {}, "cpu", path, [])
