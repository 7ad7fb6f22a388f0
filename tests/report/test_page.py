"""The page: built from made-up results, and from those of the repository."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from statistics import geometric_mean

import pytest

from tests.report.made import (
    ASYM,
    BREAKS,
    CPU,
    GPU,
    LINK,
    MAX,
    ON_CPU,
    ON_GPU,
    RESULTS,
    ROWS,
    TAG,
    absent,
)
from transfuse.bench.record import OURS, ResultError, append, read
from transfuse.report import build, charts
from transfuse.report.looks import LOOKS, marks
from transfuse.report.words import number, seconds, si, times


class Tags(HTMLParser):
    """Every tag with its attributes, and the words outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.skipping = [], "", False
        self.feed(text)
        self.words = re.sub(r" ([,.])", r"\1", " ".join(self.words.split()))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.skipping = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.skipping = False

    def handle_data(self, data):
        if not self.skipping:
            self.words += f" {data}"


@pytest.fixture(scope="session")
def parsed(page):
    return Tags(page.read_text(encoding="utf-8"))


def test_the_page_loads_nothing(parsed):
    loading = ("src", "srcset", "href", "data", "action", "poster")
    found = [(tag, key, a[key]) for tag, a in parsed.tags for key in loading if key in a]
    assert found == [("a", "href", "#table")]
    assert not [
        tag for tag, _ in parsed.tags if tag in ("link", "iframe", "object", "embed", "base")
    ]
    [policy] = [a["content"] for _, a in parsed.tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_text_from_files_is_only_text(parsed):
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert tags.count("a") == 1
    for text in (BREAKS, TAG, LINK):
        assert text in parsed.words


def lines(page):
    """The rows of the table as a browser would read them: their place, and what follows."""
    return re.findall(r'<tr data-row="(\d+)".*?</tr>', page, re.DOTALL)


def test_every_row_is_in_the_table_once(page):
    text = page.read_text(encoding="utf-8")
    assert sorted(map(int, lines(text))) == list(range(len(ROWS)))
    folds = re.findall(r"<summary>(\S+(?: models)?) <small>(\d+) rows", text)
    assert dict(folds) == {
        "max-max-sum": str(sum(r.slug == MAX for r in ROWS)),
        "asym-kernel": str(sum(r.slug == ASYM for r in ROWS)),
        "real models": str(sum(r.slug == "model" for r in ROWS)),
    }


def test_the_order_is_headline_charts_table(page):
    text = page.read_text(encoding="utf-8")
    marks = ('class="headline"', 'id="speed"', 'id="memory"', 'id="roof"', 'id="scaling"')
    places = [text.index(mark) for mark in (*marks, "How to read this", 'id="table"')]
    assert places == sorted(places)


def test_the_verdict_counts_wins_and_losses_alike(parsed):
    assert "Of 13 comparisons, transfuse is faster in 9, slower in 3," in parsed.words
    assert "with no difference in 1." in parsed.words


def counted(rows):
    """What a headline is the mean of: a peer's ratios that can be true, sweeps left out."""
    impossible = {(r.run, r.slug, r.case) for r in rows if r.impossible and r.variant == OURS}
    return [
        r
        for r in rows
        if r.variant != OURS and r.ratio and not r.impossible and not r.axis
        and (r.run, r.slug, r.case) not in impossible
    ]  # fmt: skip


def heading(text, title):
    """What stands under a heading, up to the next."""
    return text[text.index(title) :].partition(" How many times as long each")[2]


def test_headlines_are_the_means_of_the_ratios(parsed):
    """Worked out here from the rows, machine by machine and peer by peer."""
    cpu, gpu = heading(parsed.words, f"CPU ({TAG}): calls"), heading(parsed.words, "GPU: calls")
    for words, run in ((cpu, "cpu"), (gpu, "gpu")):
        of_machine = [r for r in counted(ROWS) if r.run.startswith(run) and r.slug in (MAX, ASYM)]
        for peer in {r.variant for r in of_machine}:
            ratios = [r.ratio.median for r in of_machine if r.variant == peer]
            assert f"{peer} {times(geometric_mean(ratios))} " in words
    assert "torch eager 1.37x 1 faster, 0 slower, 1 no difference" in cpu
    assert "jax - not compared" in cpu


def test_models_are_compared_by_name(parsed):
    """Another way to run them fused is beside the others, and no comparison: see the verdict."""
    words = heading(parsed.words, "Real models")
    means = (geometric_mean([2.0, 0.5]), geometric_mean([1.25, 3.0]))
    first = f"geometric mean {times(means[0])} {times(means[1])} 0.80x"
    assert f"model torch eager torch compile compile backend {first} dcgan 2.00x 1.25x" in words
    assert "unet 0.50x 3.00x 0.80x" in words


def test_ways_to_run_a_model_are_explained_where_they_are_shown(parsed):
    assert "compile backend : the model compiled with transfuse as the backend." in parsed.words
    assert "transfuse compiled" not in parsed.words


def test_only_what_the_noise_does_not_cover_is_marked_as_slower(page):
    text = page.read_text(encoding="utf-8")
    table = text[text.index('class="models"') :].partition("</table>")[0]
    assert re.findall(r"data-slower>([^<]+)", table) == ["0.50x"]


def test_without_models_there_is_no_word_of_them(tmp_path):
    path = tmp_path / "r.jsonl"
    append(path, [CPU, *ON_CPU[:5]])
    assert "Real models" not in Tags(build([path], "")).words


def test_the_repository_s_results_make_a_small_page_with_true_headlines():
    """Below 2 MB; the means, from the files alone."""
    text = build(RESULTS, "")
    assert len(text.encode()) < 2_000_000
    words = Tags(text).words
    groups = heading(words, "Real models").split(" geometric mean ")[1:]
    of_models = [path for path in RESULTS if counted(read(path)[1])[0].slug == "model"]
    models = dict(zip(of_models, groups, strict=False))
    operators: dict[tuple[str, str, bool], list[float]] = {}
    for path in RESULTS:
        for peer in {r.variant for r in counted(read(path)[1])}:
            of_peer = [r for r in counted(read(path)[1]) if r.variant == peer]
            ratios = [r.ratio.median for r in of_peer]
            if of_peer[0].slug == "model":
                assert times(geometric_mean(ratios)) in models[path].split()[:5], peer
            else:  # files of one device are one headline
                key = (peer, of_peer[0].device, of_peer[0].training)
                operators.setdefault(key, []).extend(ratios)
    for (peer, *_), ratios in operators.items():
        assert f"{peer} {times(geometric_mean(ratios))} " in words


def test_a_row_takes_two_kilobytes_at_most(page):
    """So that a thousand results stay below 2 MB; beside a file that brings every chart."""
    others = [path for path in RESULTS if path.name != "h200.jsonl"]
    first = [path for path in RESULTS if path not in others]
    small, large = build(first, ""), build(RESULTS, "")
    more = sum(len(read(path)[1]) for path in others)
    assert (len(large.encode()) - len(small.encode())) / more < 2000


def test_headings_have_no_run_ids():
    text = build(RESULTS, "")
    headings = re.findall(r"<(h[1-6]|figcaption|summary|option)\b[^>]*>(.*?)</\1>", text, re.DOTALL)
    ids = [run.id for path in RESULTS for run in read(path)[0]]
    assert len(headings) > 20
    assert len(ids) > 2
    assert not [words for _, words in headings if any(each in words for each in ids)]


def test_no_peer_looks_like_transfuse():
    rows = [replace(ON_CPU[1], variant=f"peer {at}") for at in range(20)]
    looks = marks(rows)
    assert looks.pop(OURS) == 0
    assert set(looks.values()) == set(range(1, len(LOOKS)))


def test_memory_has_a_dash_where_it_cannot_be_measured():
    text = build(RESULTS, "")
    memory = text[text.index('id="memory"') : text.index('id="roof"')]
    bars = re.findall(r'<div class="bar" data-row.*?</div>', memory)
    shown = [re.sub(r"<.*?>", " ", bar).split() for bar in bars]
    assert {bar[-1] for bar in shown if bar[0] in ("OpenVINO", "JAX/XLA", "onnxruntime")} == {"-"}
    assert {bar[-1] for bar in shown if bar[0] == OURS} == {"MB"}


def test_memory_is_drawn_beside_the_most_of_its_case():
    text = build(RESULTS, "")
    memory = text[text.index('id="memory"') : text.index('id="roof"')]
    cases = memory.split('class="panel case"')[1:]
    assert len(cases) > 50
    for case in cases:
        bars = re.findall(r"width:(\S+?)%.*?([\d.,]+) MB", case)
        drawn = [(float(width), float(mb.replace(",", ""))) for width, mb in bars]
        most = max(mb for _, mb in drawn)
        assert all(width == pytest.approx(100 * mb / most, abs=0.8) for width, mb in drawn)


def test_own_faults_are_in_the_verdict(tmp_path):
    path = tmp_path / "r.jsonl"
    bad = absent(CPU, MAX, "benchmark", "fp32", OURS, "wrong", "off by 3")
    fast = replace(ON_CPU[5], impossible=True)
    none = absent(CPU, MAX, "small", "fp32", OURS, "failed", "RuntimeError: no memory")
    append(path, [CPU, bad, none, replace(ON_CPU[1], ratio=None), fast, ON_CPU[6]])
    words = Tags(build([path], "")).words
    assert "There is nothing to compare" in words
    assert "Of transfuse's own results, 1 is wrong, 1 failed, 1 is impossible." in words


def test_rows_without_a_time_say_why(parsed):
    assert "missing: jax is not installed" in parsed.words
    assert f"wrong: off {TAG}" in parsed.words
    assert "failed: RuntimeError: no memory" in parsed.words
    assert "impossible: below the floor, not counted" in parsed.words


def test_environment_and_commands_are_there(parsed):
    for words in (
        "command transfuse bench --device cuda",
        "commit e9c42ae",
        "commit unknown",
        "seed 7",
        "packages torch 2.13.0 copy",
        "copy 21.3 GB/s at 268 MB, 81.0 GB/s at 1.05 MB",
        "matmul bf16 760 Tflop/s",
        "copy not measured",
        f"This page: transfuse report {TAG}",
    ):
        assert words in parsed.words


def test_the_facts_of_each_run_are_folded_under_its_file(page):
    text = page.read_text(encoding="utf-8")
    part = text[text.index("Where the numbers come from") : text.index("This page:")]
    labels = re.findall(r"<details>\s*<summary>.*? <small>(.*?)</small></summary>\s*<dl>", part)
    assert labels == ["cpu.jsonl", "gpu.jsonl, run 1", "gpu.jsonl, run 2"]


def test_a_malformed_line_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    append(path, [CPU, ON_CPU[0]])
    path.write_text(path.read_text() + '{"kind": "row"}\n')
    with pytest.raises(ResultError, match=rf"^{re.escape(str(path))}:3: "):
        build([path], "")


def test_files_without_rows_and_runs_given_twice_are_refused(tmp_path):
    path, full = tmp_path / "empty.jsonl", tmp_path / "full.jsonl"
    path.write_text("")
    append(full, [CPU, ON_CPU[0]])
    with pytest.raises(ResultError) as caught:
        build([full, path], "")
    assert str(caught.value) == f"{path}:1: there are no rows of results in this file"
    with pytest.raises(ResultError) as caught:
        build([full, full], "")
    assert str(caught.value) == f"{full}:1: run 'cpu-1' is already in {full}"
    with pytest.raises(ValueError, match=r"^a report needs at least one file of results$"):
        build([], "")


def test_runs_of_files_of_one_name_stay_apart(tmp_path):
    files = [tmp_path / each / "r.jsonl" for each in ("one", "two")]
    for file, run, of_run in zip(files, (CPU, GPU), (ON_CPU[:2], ON_GPU[:2]), strict=True):
        file.parent.mkdir()
        append(file, [run, *of_run])
    words = Tags(build(files, "")).words
    assert f"Run all {files[0].as_posix()} {files[1].as_posix()}" in words


def test_a_missing_package_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RuntimeError) as caught:
        build([], "")
    assert str(caught.value) == "jinja2 is not installed; pip install 'transfuse[report]'"


def test_numbers_keep_three_digits():
    shown = [number(v) for v in (0, 0.0123456, 1.2345, 12.345, 123.45, 12345.6, float("inf"))]
    assert shown == ["0", "0.0123", "1.23", "12.3", "123", "12,346", "∞"]
    assert number(0.0909, like=0.1) == "0.091"
    ratios = [times(v) for v in (0.01, 0.0123, 0.938, 1.85, 12.34)]
    assert ratios == ["0.01x", "0.012x", "0.94x", "1.85x", "12.3x"]
    assert [seconds(v) for v in (0.0042, 3.14159)] == ["4.20 ms", "3.14 s"]
    assert [si(v, "B/s") for v in (12.0, 2.13e10, 4.1e12)] == ["12.0 B/s", "21.3 GB/s", "4.10 TB/s"]


def test_the_label_of_a_roof_makes_way_for_a_result():
    above = charts.beside_end(300, 60, [(20, 50, None), (290, 120, None)])
    assert above[1] < 60
    assert charts.beside_end(300, 60, [(250, 48, None)])[1] > 60
