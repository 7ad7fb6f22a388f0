"""The table of results in a document is the one its file of results gives."""

from pathlib import Path

import pytest

from transfuse.report.summary import BEGIN, markdown, update

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_what_the_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = Path("README.md")
    for results in sorted(Path("benchmarks/results").glob("*.jsonl")):
        if BEGIN.format(file=results.as_posix()) in readme.read_text():
            assert update(readme, results) == readme.read_text()
            break
    else:
        pytest.fail("README.md names no file of results")


def test_a_table_has_the_best_peer_of_each_case() -> None:
    table = markdown(ROOT / "benchmarks/results/h200-eager.jsonl")
    assert table.count("\n") > 5
    assert "| tf32 |" in table


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("nothing here")
    with pytest.raises(ValueError, match="no lines"):
        update(document, ROOT / "benchmarks/results/h200-eager.jsonl")
    assert document.read_text() == "nothing here"
