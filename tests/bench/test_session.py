"""Whole runs through the command line: files, interruption, resumption, comparison, the guard."""

import json
import sys
from dataclasses import replace

import pytest

from transfuse.backends.cpu import Cpu
from transfuse.backends.eager import Eager
from transfuse.bench import session as session_module
from transfuse.bench.compare import compare
from transfuse.bench.record import append, read
from transfuse.bench.statistics import spread
from transfuse.cli import main
from transfuse.operators import OPERATORS

MAX = "conv-transpose3d-max-max-sum"
PLAIN = "conv-transpose-2d-square-input-asym-kernel"
QUICK = ("--rounds", "5", "--peer", "torch eager")


@pytest.fixture
def bench(monkeypatch, capsys, quick_ceilings):
    """Run ``transfuse bench``; gives exit status, stdout, stderr."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["transfuse", "bench", *map(str, words)])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_a_run_writes_its_header_and_every_sample(bench, tmp_path):
    path = tmp_path / "r.jsonl"
    status, printed, _ = bench(MAX, PLAIN, "--set", "small", *QUICK, "--seed", 3, "-o", path)
    assert status == 0
    assert f"transfuse report {path}" in printed
    [run], rows = read(path)
    assert run.command.startswith("transfuse bench conv-transpose3d-max-max-sum")
    assert run.seed == 3
    assert run.environment["packages"]["torch"]
    assert run.copy
    assert run.matmul["fp32"] > 0
    assert run.special["fp32"] > 0
    assert [(row.slug, row.variant) for row in rows] == [
        (slug, variant) for slug in (MAX, PLAIN) for variant in ("transfuse", "torch eager")
    ]
    assert all(len(row.samples) == 5 for row in rows)


def test_json_has_the_same_rows(bench, tmp_path):
    _, printed, _ = bench(MAX, "--case", "small", *QUICK, "-o", tmp_path / "r.jsonl", "--json")
    rows = json.loads(printed)["rows"]
    assert [row["variant"] for row in rows] == ["transfuse", "torch eager"]
    assert all(row["floor"] >= row["floor_of_definition"] > 0 for row in rows)


def test_several_classes_stay_apart(bench, tmp_path):
    path = tmp_path / "r.jsonl"
    bench(MAX, "--set", "small", "--precision", "fp32", "--precision", "fp64", *QUICK, "-o", path)
    assert {row.precision for row in read(path)[1]} == {"fp32", "fp64"}
    assert all(f" {row.precision} " in row.case for row in read(path)[1])


def test_an_interrupted_run_keeps_what_it_measured_and_resumes(bench, tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    real, calls = session_module.measure, []

    def until_the_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(session_module, "measure", until_the_third)
    status, _, error = bench("--set", "small", *QUICK, "-o", path)
    assert status == 130
    assert "4 rows kept; go on with --resume" in error.replace("\n", " ")
    kept = read(path)[1]
    assert len(kept) == 4

    monkeypatch.setattr(session_module, "measure", real)
    status, printed, _ = bench("--set", "small", *QUICK, "--resume", path)
    assert status == 0
    assert "2 cases were in the file already" in printed
    runs, rows = read(path)
    assert len(runs) == 2
    assert rows[:4] == kept
    assert len({row.key for row in rows}) == 5
    assert len(rows) == 10


def test_a_file_with_results_is_never_written_over(bench, tmp_path):
    path = tmp_path / "r.jsonl"
    bench(MAX, "--set", "small", *QUICK, "-o", path)
    before = path.read_bytes()
    status, _, error = bench(MAX, "--set", "small", *QUICK, "-o", path)
    assert status == 2
    assert "has results already" in error
    assert path.read_bytes() == before


def faster(rows, factor):
    """The rows with ours sped up, and torch eager as it was."""
    for row in rows:
        samples = [s / factor if row.variant == "transfuse" else s for s in row.samples]
        yield replace(row, samples=samples, time=spread(samples))


def test_comparison_says_no_difference_within_the_spread(bench, tmp_path):
    old = tmp_path / "old.jsonl"
    bench(MAX, "--set", "small", *QUICK, "-o", old)
    status, printed, _ = bench("--compare", old, old, "--json")
    assert status == 0
    assert [change["verdict"] for change in json.loads(printed)] == ["no difference"]
    assert bench("--compare", old, old)[0] == 0


def test_comparison_on_a_cpu_is_relative_to_torch_eager(bench, tmp_path):
    old, new, busy = (tmp_path / f"{name}.jsonl" for name in ("old", "new", "busy"))
    bench(MAX, "--set", "small", *QUICK, "-o", old)
    runs, rows = read(old)
    rows = [replace(row, samples=[1.0, 1.01, 0.99, 1.0, 1.0]) for row in rows]
    old.unlink()
    append(old, [*runs, *faster(rows, 1)])
    append(new, [*runs, *faster(rows, 1.5)])
    slowed = [replace(row, samples=[3 * s for s in row.samples]) for row in rows]
    append(busy, [*runs, *faster(slowed, 1)])
    assert [each.verdict for each in compare(old, new)] == ["faster"]
    assert [each.verdict for each in compare(new, old)] == ["slower"]
    # A machine three times slower for all alike changes nothing.
    assert [each.verdict for each in compare(old, busy)] == ["no difference"]


def test_comparison_on_a_gpu_is_of_times(bench, tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    bench(MAX, "--set", "small", *QUICK, "-o", old)
    runs, rows = read(old)
    rows = [replace(row, device="cuda:sm90", samples=[1.0] * 5) for row in rows]
    old.unlink()
    append(old, [*runs, *faster(rows, 1)])
    append(new, [*runs, *faster(rows, 2)])
    verdicts = {each.variant: each.verdict for each in compare(old, new)}
    assert verdicts == {"transfuse": "faster", "torch eager": "no difference"}


def test_comparison_names_what_only_one_file_has(bench, tmp_path):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    bench(MAX, "--set", "small", *QUICK, "-o", old)
    bench(PLAIN, "--set", "small", *QUICK, "-o", new)
    assert {each.verdict for each in compare(old, new)} == {
        "only in the new file",
        "only in the old file",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "huge"), "unknown set of cases 'huge'"),
        (("--peer", "magic"), "unknown peer 'magic'"),
        (("--precision", "tf32"), "no precision class 'tf32' here"),
        (("--device", "cuda"), "device 'cuda' is not here"),
        (("--compare", "absent.jsonl", "absent.jsonl"), "absent.jsonl"),
        (("--resume", "absent.jsonl"), "absent.jsonl"),
    ],
)
def test_bad_arguments_are_one_error(bench, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    status, _, error = bench(*words)
    assert status == 2
    assert message in error
    assert not list(tmp_path.iterdir())


def test_the_guard_fails_a_run_that_is_too_slow(bench, tmp_path):
    words = (MAX, "--set", "small", *QUICK, "-o")
    assert bench(*words, tmp_path / "a.jsonl", "--at-least", "1e-6")[0] == 0
    status, _, error = bench(*words, tmp_path / "b.jsonl", "--at-least", "1e6")
    assert status == 1
    assert "slower than torch eager" in error


GUARDED = {
    PLAIN: "n1 ci32 co32 i64x64 k3x7",
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": (
        "n1 ci32 co32 i32x32 k4 s2 p1 op1 scaling_factor=2"
    ),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (
        "n1 ci16 co16 i16x32x32 k3 s2 p1 op1 pool_kernel=2 clamp_min=0 clamp_max=1"
    ),
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": "n2 ci32 co32 i32x32 k5 p1 num_groups=8",
    MAX: "n1 ci16 co16 i16x16x16 k5 s2 p2",
}


@pytest.mark.parametrize("slug", GUARDED)
def test_ours_does_no_more_than_torch_eager(slug):
    """The guard against plans that grow; how long they take is for `--at-least` to tell."""
    operator = OPERATORS[slug]
    case = operator.case(GUARDED[slug])
    ours, eager = (each.plan(operator.bound(case), case.problem) for each in (Cpu(), Eager()))
    for figure in ("flops", "reads", "writes"):
        done = [sum(getattr(step, figure) for step in plan.passes) for plan in (ours, eager)]
        assert 0 < done[0] <= done[1], figure
    assert len(ours.passes) <= len(eager.passes)
