"""A bench on a terminal of 80 columns: nothing is wider, no name is broken, noise is called so."""

import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from transfuse.bench.peers import peers
from transfuse.bench.record import FUSED, OURS, POOLED, Row, Spread, read
from transfuse.bench.statistics import outcome
from transfuse.bench.ways import WAYS
from transfuse.cli import main, output, status
from transfuse.cli.results import CAPTION, ROOM, results
from transfuse.operators import operator, short

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for console in (output.out, output.err):
        monkeypatch.setattr(console, "width", 80)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["transfuse", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def widest(text: str) -> int:
    return max(len(line.rstrip()) for line in text.splitlines())


def printed(rows: list[Row], width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    for part in results(rows, width):
        console.print(part)
    return console.file.getvalue()


@pytest.mark.parametrize("file", ["cpu-2-cores.jsonl", "h200.jsonl"])
@pytest.mark.parametrize("width", [80, ROOM])
def test_results_fit_and_break_no_name(file: str, width: int) -> None:
    _, rows = read(RESULTS / file)
    text = printed(rows, width)
    assert widest(text) <= width
    assert "…" not in text
    words = text.split()
    for row in rows:
        assert short(row.slug) in words
        assert row.variant in text
    assert text.endswith(f"{CAPTION}\n")
    assert ("p20 to p80" in text.splitlines()[2]) == (width == ROOM)


def test_memory_that_cannot_be_measured_is_a_dash() -> None:
    _, rows = read(RESULTS / "cpu-2-cores.jsonl")
    lines = printed(rows).splitlines()
    ends = {
        row.variant: [line.split()[-1] for line in lines if line.startswith(f" {row.variant} ")]
        for row in rows
    }
    assert set(ends["OpenVINO"]) == {"-"}
    assert "-" not in ends[OURS]
    assert set(peers()) >= POOLED


def test_other_ways_to_run_a_model_fused_are_ways() -> None:
    assert {way.name for way in WAYS} > FUSED


def row(variant: str, ms: tuple[float, float, float], ratio: tuple[float, float, float]) -> Row:
    """A row of these p20, median and p80."""
    blank = Row("r", "conv-transpose3d-max-max-sum", "small", "n1", "fp32", "cpu", variant, "ok")
    time, times = (Spread(each[1], each[0], each[2]) for each in (ms, ratio))
    return replace(blank, time=time, ratio=None if variant == OURS else times)


@pytest.mark.parametrize(
    ("theirs", "ratio", "shown"),
    [
        ((1.8, 2.0, 2.2), (1.7, 2.0, 2.3), "2.00x"),
        ((0.4, 0.5, 0.6), (0.4, 0.5, 0.6), "0.50x"),
        ((1.05, 1.2, 1.3), (1.1, 1.2, 1.3), "1.20x~"),  # the times meet
        ((1.2, 1.3, 1.4), (0.9, 1.3, 1.4), "1.30x~"),  # the ratio and 1 meet
        ((0.95, 1.0, 1.05), (0.9, 1.0, 1.1), "1.00x~"),
    ],
)
def test_a_ratio_that_the_noise_covers_says_so(theirs, ratio, shown) -> None:
    rows = [row(OURS, (0.9, 1.0, 1.1), (1, 1, 1)), row("torch eager", theirs, ratio)]
    text = printed(rows)
    assert shown in text.split()
    assert (outcome(rows[1].time, rows[0].time, rows[1].ratio) == "no difference") == ("~" in shown)


def test_bench_says_in_a_log_where_it_is(cli: Cli, quick_ceilings, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    words = (
        "bench",
        "max-max-sum",
        "asym-kernel",
        "--set",
        "small",
        "--rounds",
        "5",
        "-o",
        str(file),
    )
    code, printed, error = cli(*words, "--peer", "torch eager")
    assert code == 0
    assert error.splitlines() == [
        f"{at}/2 {name} small fp32: {doing}"
        for at, name in ((1, "max-max-sum"), (2, "asym-kernel"))
        for doing in (OURS, "torch eager", "timing 2 variants in turn")
    ]
    assert widest(printed.partition("results: ")[0]) <= 80
    assert {each.slug for each in read(file)[1]} == {
        operator(n).slug for n in ("max-max-sum", "asym-kernel")
    }
    code, printed, error = cli("bench", "--compare", str(file), str(file))
    assert code == 0
    assert widest(printed) <= 80
    assert "max-max-sum  fp32" in printed


def test_a_status_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(status, "err", screen)
    with status.Status(2) as line:
        line.tell("max-max-sum small fp32: torch [eager]")
        line.progress.refresh()
        line.advance()
    shown = screen.file.getvalue()
    assert "torch [eager]" in shown
    assert "0/2" in shown


def test_json_is_not_disturbed(cli: Cli, quick_ceilings, tmp_path: Path) -> None:
    words = ("--set", "small", "--rounds", "5", "--peer", "torch eager", "--json")
    code, _, error = cli("bench", "max-max-sum", *words, "-o", str(tmp_path / "r.jsonl"))
    assert (code, error) == (0, "")
