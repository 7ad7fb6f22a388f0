"""The tables and the figure of a document are those that its files of results give."""

import re
from pathlib import Path

import pytest

from transfuse.bench.record import OURS, append, read
from transfuse.report.figure import figure
from transfuse.report.summary import BEGIN, markdown, update

ROOT = Path(__file__).parents[2]
H200 = ROOT / "benchmarks/results/h200.jsonl"


NAMED = re.compile(BEGIN.format(file=r"(\S+)"))


def test_the_readme_shows_what_the_files_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = Path("README.md")
    files = NAMED.findall(readme.read_text())
    assert len(files) == 4, files
    for results in map(Path, files):
        assert update(readme, results) == readme.read_text()


def test_the_figure_shows_what_the_file_holds() -> None:
    assert figure([H200]) == (ROOT / "docs/h200.svg").read_text()
    assert "docs/h200.svg" in (ROOT / "README.md").read_text()


def test_a_table_has_the_best_peer_of_each_case() -> None:
    table = markdown(H200)
    assert table.count("\n") > 5
    assert "| tf32 |" in table


def test_a_figure_has_a_mark_for_every_peer() -> None:
    """And places it by its ratio, on a scale of powers of two."""
    _, rows = read(H200)
    marks = re.findall(r"translate\((\S+) \S+\)\"><title>.*, (\S+)x<", figure([H200]))
    assert len(marks) == sum(row.ratio is not None for row in rows)
    places = sorted((float(ratio), float(x)) for x, ratio in marks)
    assert [x for _, x in places] == sorted(x for _, x in places)


def test_results_of_ours_alone_make_no_figure(tmp_path: Path) -> None:
    runs, rows = read(H200)
    alone = tmp_path / "alone.jsonl"
    append(alone, [*runs, *(row for row in rows if row.variant == OURS)])
    with pytest.raises(ValueError, match="no peer"):
        figure([alone])


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("nothing here")
    with pytest.raises(ValueError, match="no lines"):
        update(document, H200)
    assert document.read_text() == "nothing here"
