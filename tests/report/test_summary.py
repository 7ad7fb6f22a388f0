"""The tables and the figures of a document are those that its files of results give."""

import re
from pathlib import Path

import pytest

from tests.report.made import CPU, ON_CPU
from transfuse.bench.record import OURS, append, read
from transfuse.report.figure import figure
from transfuse.report.summary import BEGIN, END, markdown, update

ROOT = Path(__file__).parents[2]
FILES = Path("benchmarks/results")
H200 = ROOT / FILES / "h200.jsonl"
README, RESULTS = Path("README.md"), Path("docs/results.md")
FULL = ("cpu-2-cores", "h200-both-layouts", "h200", "h200-training")
BRIEF = ("cpu-2-cores.jsonl, fp32", "h200-both-layouts.jsonl, tf32")
FIGURES = {
    "docs/h200.svg": [H200],
    "docs/models.svg": [ROOT / FILES / f"{name}-models.jsonl" for name in ("cpu-2-cores", "h200")],
}
NAMED = re.compile(BEGIN.format(file=r"(\S+/)(.+)"))


def test_the_page_of_results_has_every_table_and_names_every_file() -> None:
    text = (ROOT / RESULTS).read_text()
    assert NAMED.findall(text) == [(f"{FILES}/", f"{name}.jsonl") for name in FULL]
    assert not [each.name for each in (ROOT / FILES).iterdir() if each.name not in text]


def test_the_readme_has_one_short_table_for_each_device() -> None:
    assert NAMED.findall((ROOT / README).read_text()) == [(f"{FILES}/", each) for each in BRIEF]


@pytest.mark.parametrize("document", [README, RESULTS], ids=str)
def test_a_document_shows_what_the_files_hold(
    monkeypatch: pytest.MonkeyPatch, document: Path
) -> None:
    monkeypatch.chdir(ROOT)
    files = {each.partition(",")[0] for _, each in NAMED.findall(document.read_text())}
    for results in files:
        assert update(document, FILES / results) == document.read_text()


def test_ratios_in_the_text_of_the_readme_are_in_a_figure_or_a_table() -> None:
    """Those of models by name."""
    text = (ROOT / README).read_text()
    titles = re.findall(
        r"<title>(?:geometric )?(.+?): (.+)", (ROOT / "docs/models.svg").read_text()
    )
    tables = re.findall(r"\| (\S+) \|$", (ROOT / RESULTS).read_text(), re.MULTILINE)
    models, operators = text[: text.index("## Install")], text[text.index("## Install") :]
    of_models = re.findall(r"([\w-]+) (\d+\.\d+x)", models)
    assert len(of_models) > 6
    for name, ratio in of_models:
        told = [words for model, words in titles if model == name.lower()]
        assert any(f"{ratio} as fast" in words for words in told), (name, ratio)
    ratios = re.findall(r"(\d+\.\d+)x", operators)
    assert len(ratios) > 4
    assert not [ratio for ratio in ratios if ratio not in tables]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_what_its_files_hold(name: str) -> None:
    assert figure(FIGURES[name]) == (ROOT / name).read_text()
    for document in (README, RESULTS):
        assert f"({Path(name).relative_to(document.parent).as_posix()})" in (
            (ROOT / document).read_text()
        )


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


def test_a_mark_with_a_precision_has_a_short_table(tmp_path: Path) -> None:
    """Of one file with two tables both are made again, and nothing else is touched."""
    document = tmp_path / "a.md"
    mark = f"<!-- results: {H200.as_posix()}{{}} -->"
    marks = [mark.format(each) for each in ("", ", fp16")]
    document.write_text(f"before {marks[0]} old {END} between {marks[1]}{END} after\n")
    text = update(document, H200)
    assert re.sub(r"\|.*\|\n", "", text) == (
        f"before {marks[0]}\n\n\n{END} between {marks[1]}\n\n\n{END} after\n"
    )
    long, brief = text.split(" between ")
    assert long.count("\n|") == 22
    assert brief.count("\n|") == 7
    assert "| operator | transfuse ms | best peer | its ms | ratio |" in brief
    assert "| `softmax-sigmoid` | 0.493 | torch.compile max-autotune | 1.06 | 2.15 |" in brief


def test_a_table_without_an_end_takes_nothing_of_the_next(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    mark = BEGIN.format(file=H200.as_posix())
    document.write_text(f"{mark}\n{BEGIN.format(file='other')}\nkept\n{END}")
    with pytest.raises(ValueError, match="no lines"):
        update(document, H200)


def test_a_precision_that_a_file_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results in 'fp8' beside a peer; it has tf32, fp16, b"):
        markdown(H200, "fp8")
    path = tmp_path / "alone.jsonl"
    append(path, [CPU, ON_CPU[0]])
    with pytest.raises(ValueError, match="no results beside a peer"):
        markdown(path)
