"""The page: built from synthetic results, then used in a real browser as a reader would."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from transfuse.bench.record import OURS, ResultError, Row, Run, Spread, append
from transfuse.report import build
from transfuse.report.page import number, seconds, si, times

MAX = "conv-transpose3d-max-max-sum"
ASYM = "conv-transpose-2d-square-input-asym-kernel"
BREAKS = "</script><script>window.hacked=1</script>"
TAG = '<img src=x onerror="window.hacked=2">'
LINK = '<a href="//e">p</a>'

CPU = Run(
    id="cpu-1",
    command=f"transfuse bench {TAG}",
    started="2026-11-03T10:12:00+00:00",
    device="cpu",
    seed=7,
    commit="e9c42ae",
    environment={"cpu": TAG, "packages": {"torch": "2.13.0", "jax": None}, "gpus": []},
    copy=[(2**28, 2.13e10), (2**20, 8.1e10)],
    matmul={"fp32": 1.9e11},
)
GPU = replace(
    CPU,
    id="gpu-1",
    command="transfuse bench --device cuda",
    device="cuda:sm90",
    copy=[(2**30, 4.1e12)],
    matmul={"bf16": 7.6e14},
)
GPU_AGAIN = replace(GPU, id="gpu-2", commit=None, copy=[], matmul={"tf32": 3.9e14})


def row(run, slug, name, precision, variant, ms=None, ratio=None, **more):
    """A row of ``ms`` milliseconds, at ``ratio`` (p20, median, p80) times ours."""
    facts = {
        "case": f"n8 ci64 co64 {name} {precision}",
        "status": "ok",
        "flops": 40_000_000,
        "bytes": 2_000_000,
        "floor": 2e-4,
    }
    if ms is not None:
        facts["time"] = Spread(ms / 1e3, ms / 1.1e3, ms / 0.9e3)
    if ratio is not None:
        facts["ratio"] = Spread(ratio[1], ratio[0], ratio[2])
    facts |= more
    return Row(run.id, slug, name, facts.pop("case"), precision, run.device, variant, **facts)


def absent(run, slug, name, precision, variant, status, reason, **more):
    return row(run, slug, name, precision, variant, status=status, reason=reason, **more)


ON_CPU = [
    row(CPU, MAX, "benchmark", "fp32", OURS, 1.0, (1, 1, 1), backend="cpu", error=0.25),
    row(CPU, MAX, "benchmark", "fp32", "torch eager", 1.85, (1.8, 1.85, 1.9), error=0.5),
    row(CPU, MAX, "benchmark", "fp32", "torch compile", 0.5, (0.45, 0.5, 0.55), first_call=12.5),
    absent(CPU, MAX, "benchmark", "fp32", "jax", "missing", "jax is not installed"),
    absent(CPU, MAX, "benchmark", "fp32", LINK, "wrong", f"off {TAG}", error=float("inf")),
    row(CPU, ASYM, "benchmark", "fp32", OURS, 12.0, (1, 1, 1), backend="cpu", peak_bytes=3_000_000),
    row(CPU, ASYM, "benchmark", "fp32", "torch eager", 12.1, (0.97, 1.01, 1.04), peak_bytes=10**9),
    row(CPU, ASYM, "benchmark", "fp32", "jax", 0.1, (0.01, 0.01, 0.01), impossible=True),
    row(CPU, ASYM, BREAKS, "fp32", OURS, 3.0, (1, 1, 1), backend="eager", case=BREAKS),
    row(CPU, ASYM, BREAKS, "fp32", LINK, 9.0, (2.9, 3.0, 3.1), case=BREAKS),
    *(
        row(CPU, MAX, "sizes", "fp32", variant, ms * at, ratio, axis="batch", at=at, case=f"n{at}")
        for at in (16, 1, 2)
        for variant, ms, ratio in ((OURS, 1.0, (1, 1, 1)), ("torch eager", 2.5, (2.4, 2.5, 2.6)))
    ),
]
ON_GPU = [
    row(GPU, MAX, "benchmark", "bf16", OURS, 0.02, (1, 1, 1), backend="triton", first_call=0.75),
    row(GPU, MAX, "benchmark", "bf16", "torch eager", 0.13, (6.4, 6.5, 6.6), first_call=0.05),
    absent(GPU, MAX, "benchmark", "bf16", "torch compile", "failed", "RuntimeError: no memory"),
    row(GPU_AGAIN, MAX, "benchmark", "tf32", OURS, 0.03, (1, 1, 1), backend="triton"),
    row(GPU_AGAIN, MAX, "benchmark", "tf32", "torch eager", 0.02, (0.6, 0.7, 0.8)),
]
ROWS = ON_CPU + ON_GPU


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """The file of a page built from a CPU run and two GPU runs."""
    folder = tmp_path_factory.mktemp("report")
    append(folder / "cpu.jsonl", [CPU, *ON_CPU])
    append(folder / "gpu.jsonl", [GPU, GPU_AGAIN, *ON_GPU])
    path = folder / "report.html"
    files = [folder / "cpu.jsonl", folder / "gpu.jsonl"]
    path.write_text(build(files, f"transfuse report {TAG}"), encoding="utf-8")
    return path


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
    assert tags.count("script") == 3
    assert "img" not in tags
    assert tags.count("a") == 1
    for text in (BREAKS, TAG, LINK):
        assert text in parsed.words


def test_the_data_survives_its_escaping(page):
    text = page.read_text(encoding="utf-8")
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text)
    rows = json.loads(data)["rows"]
    assert len(rows) == len(ROWS)
    assert [r["line"] for r in rows] == [r.case for r in ROWS]
    assert rows[4]["error"] == sys.float_info.max


def test_the_verdict_counts_wins_and_losses_alike(parsed):
    assert "Of 9 comparisons, transfuse is faster in 6, slower in 2," in parsed.words
    assert "with no difference in 1." in parsed.words
    assert "torch eager 5 1 1 0" in parsed.words
    assert "torch compile 0 1 0 1" in parsed.words
    assert "jax 0 0 0 2" in parsed.words


def test_own_faults_are_in_the_verdict(tmp_path):
    path = tmp_path / "r.jsonl"
    bad = absent(CPU, MAX, "benchmark", "fp32", OURS, "wrong", "off by 3")
    fast = replace(ON_CPU[5], impossible=True)
    append(path, [CPU, bad, replace(ON_CPU[1], ratio=None), fast, ON_CPU[6]])
    words = Tags(build([path], "")).words
    assert "There is nothing to compare" in words
    assert "Of transfuse's own results, 1 is wrong, 1 is impossible." in words


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
    assert "Run all r.jsonl cpu-1 r.jsonl gpu-1" in words


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_package_is_named(monkeypatch, package):
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RuntimeError) as caught:
        build([], "")
    assert str(caught.value) == f"{package} is not installed; pip install 'transfuse[report]'"


def test_numbers_keep_three_digits():
    shown = [number(v) for v in (0, 0.0123456, 1.2345, 12.345, 123.45, 12345.6, float("inf"))]
    assert shown == ["0", "0.0123", "1.23", "12.3", "123", "12,346", "∞"]
    assert number(0.0909, like=0.1) == "0.091"
    ratios = [times(v) for v in (0.01, 0.0123, 0.938, 1.85, 12.34)]
    assert ratios == ["0.01x", "0.012x", "0.94x", "1.85x", "12.3x"]
    assert [seconds(v) for v in (0.0042, 3.14159)] == ["4.20 ms", "3.14 s"]
    assert [si(v, "B/s") for v in (12.0, 2.13e10, 4.1e12)] == ["12.0 B/s", "21.3 GB/s", "4.10 TB/s"]


# In a browser.

SWITCHES = """--headless=new --no-sandbox --disable-gpu --disable-background-networking
--no-first-run --disable-component-update --disable-sync --disable-quic --disable-dev-shm-usage"""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A headless browser of this machine; nothing is downloaded."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="no selenium; pip install selenium"
    )
    driver = shutil.which("chromedriver")
    binary = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if not driver or not binary:
        pytest.skip("no browser; Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for switch in SWITCHES.split():
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver, env={**os.environ, "SE_OFFLINE": "true"})
    browser = webdriver.Chrome(options, service)
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium, page):
    """The page, just opened on a desk, by day; its console must stay silent."""
    resize(chromium, 1280, 900)
    scheme(chromium, "light")
    chromium.get(page.as_uri())
    yield chromium
    assert chromium.get_log("browser") == []
    assert chromium.execute_script("return window.hacked") is None
    assert chromium.execute_script("return performance.getEntriesByType('resource')") == []


def resize(browser, width, height):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def scheme(browser, name):
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait(browser, script):
    """Until the script gives something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda b: b.execute_script(script))


def shown(browser):
    """The rows on show, as places in ROWS."""
    return browser.execute_script(
        "return [...body.rows].filter(r => r.offsetHeight).map(r => lines.indexOf(r))"
    )


def press(browser, key):
    browser.execute_script(f"document.querySelector('[data-key={key}] button').click()")


def choose(browser, name, value):
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("name", name)).select_by_visible_text(value)


def drawn(browser):
    """How many bars, roofline points and curve points there are, in the traces and on show."""
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    kinds = {"speed": "bar", "roof": "markers", "scaling": "lines+markers"}
    marks = {"speed": ".bars .point", "roof": ".points .point", "scaling": ".points .point"}
    counts = []
    for name, kind in kinds.items():
        script = (
            f"return [...document.querySelectorAll('#{name} .plot')].flatMap(p => p.data)"
            f".filter(t => t.type === '{kind}' || t.mode === '{kind}')"
            ".reduce((n, t) => n + t.x.length, 0)"
        )
        counts.append(browser.execute_script(script))
        on_show = f"return document.querySelectorAll('#{name} {marks[name]}').length"
        wait(browser, f"{on_show} === {counts[-1]}")
    return counts


def expected(rows):
    """The same, from the rows."""
    timed = [r for r in rows if r.time]
    bars = [r for r in timed if r.variant != OURS and not r.axis]
    return [len(bars), len(timed), len([r for r in timed if r.axis])]


def spoken(text):
    """Numbers inside text count as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def label(r):
    return f"{r.name}, {r.axis} {r.at}" if r.axis else r.name


COLUMNS = {
    "operator": lambda r: spoken(r.slug.removeprefix("conv-transpose").removeprefix("-")),
    "case": lambda r: spoken(label(r)),
    "precision": lambda r: spoken(r.precision),
    "device": lambda r: spoken(r.device),
    "variant": lambda r: spoken(r.variant),
    "time": lambda r: r.time and r.time.median,
    "p20": lambda r: r.time and r.time.p20,
    "ratio": lambda r: r.ratio.median if r.ratio and r.variant != OURS else None,
    "of_floor": lambda r: r.of_floor,
    "error": lambda r: r.error,
    "peak": lambda r: r.peak_bytes,
    "first": lambda r: r.first_call,
    "status": lambda r: spoken(r.status),
}


@pytest.mark.parametrize("key", COLUMNS)
def test_every_column_sorts_both_ways(browser, key):
    value = COLUMNS[key]
    filled = [i for i, r in enumerate(ROWS) if value(r) is not None]
    empty = [i for i, r in enumerate(ROWS) if value(r) is None]
    for way, down in (("ascending", False), ("descending", True)):
        press(browser, key)
        # Equal values keep the order they had, which is the first one or the ascending one.
        filled = sorted(filled, key=lambda i: value(ROWS[i]), reverse=down)
        assert shown(browser) == filled + empty
        states = browser.execute_script(
            "return headings.map(h => [h.dataset.key, h.getAttribute('aria-sort')])"
        )
        assert dict(states) == {name: way if name == key else "none" for name in COLUMNS}


def test_sorting_is_stable(browser):
    press(browser, "time")
    before = shown(browser)
    press(browser, "precision")
    assert shown(browser) == sorted(before, key=lambda i: ROWS[i].precision)


FILTERS = [
    ("operator", "3d-max-max-sum", lambda r: r.slug == MAX),
    ("precision", "bf16", lambda r: r.precision == "bf16"),
    ("device", "cuda:sm90", lambda r: r.device == "cuda:sm90"),
    ("variant", "torch eager", lambda r: r.variant == "torch eager"),
    ("variant", LINK, lambda r: r.variant == LINK),
    ("set", "sizes along batch", lambda r: r.axis == "batch"),
    ("run", "gpu.jsonl gpu-2", lambda r: r.run == "gpu-2"),
]


@pytest.mark.parametrize(("name", "value", "keep"), FILTERS, ids=[f[1] for f in FILTERS])
def test_filters_act_on_table_and_plots_together(browser, name, value, keep):
    assert len(shown(browser)) == len(ROWS)
    assert drawn(browser) == expected(ROWS)
    choose(browser, name, value)
    kept = [i for i, r in enumerate(ROWS) if keep(r)]
    assert shown(browser) == kept
    assert browser.find_element("id", "count").text == f"{len(kept)} of {len(ROWS)} rows"
    assert drawn(browser) == expected([ROWS[i] for i in kept])


def test_reset_shows_everything_again(browser):
    choose(browser, "operator", "3d-max-max-sum")
    choose(browser, "device", "cpu")
    choose(browser, "outcome", "slower")
    assert shown(browser) == [2]
    choose(browser, "outcome", "no difference")
    assert shown(browser) == []
    assert "Nothing to draw with these filters." in browser.find_element("id", "speed").text
    browser.find_element("css selector", "button[type=reset]").click()
    wait(browser, f"return document.getElementById('count').textContent.startsWith('{len(ROWS)} ')")
    assert len(shown(browser)) == len(ROWS)
    assert drawn(browser) == expected(ROWS)


def test_a_losing_bar_lies_left_of_one(browser):
    drawn(browser)
    bars = browser.execute_script(
        "return [...document.querySelectorAll('#speed .plot')].flatMap(p => p.data)"
        ".filter(t => t.type === 'bar').flatMap(t => t.x.map((x, i) =>"
        " [2 ** x, t.error_x.arrayminus[i], t.error_x.array[i]]))"
    )
    ratios = [r.ratio.median for r in ROWS if r.ratio and r.variant != OURS and not r.axis]
    assert sorted(x for x, _, _ in bars) == pytest.approx(sorted(ratios))
    assert sum(x < 1 for x, _, _ in bars) == 3
    assert all(low >= 0 and high >= 0 for _, low, high in bars)
    ones = "return document.querySelectorAll('#speed .zeroline, #speed .xzl').length"
    assert browser.execute_script(ones) == len({(r.slug, r.name) for r in ROWS if not r.axis})


def test_plots_show_text_from_files_as_text(browser):
    drawn(browser)
    assert browser.find_elements("css selector", ".plot svg a") == []
    words = "return [...document.querySelectorAll('#speed .plot text')].map(t => t.textContent)"
    labels = browser.execute_script(words)
    assert LINK in labels


def test_a_bar_under_the_pointer_tells_its_row(browser):
    from selenium.webdriver.common.action_chains import ActionChains

    choose(browser, "variant", "torch compile")
    drawn(browser)
    bar = browser.find_element("css selector", "#speed .bars .point path")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(browser).move_to_element(bar).perform()
    told = wait(browser, "return document.querySelector('#speed .hovertext')?.textContent")
    assert told == (
        "torch compile"
        "3d-max-max-sum, benchmark"
        "fp32, cpu, cpu.jsonl"
        "0.500 ms (0.455–0.556)"  # noqa: RUF001
        "0.50x (0.45x–0.55x)"  # noqa: RUF001
        "80.0 Gflop/s, 40.0 % of floor"
    )


def test_the_roofline_is_that_of_each_run(browser):
    drawn(browser)
    texts = browser.execute_script(
        "return [...document.querySelectorAll('#roof .plot')].map(p => p.data"
        ".filter(t => t.mode === 'lines+text').flatMap(t => t.text).filter(Boolean))"
    )
    assert texts == [
        ["copy 21.3 GB/s", "matmul 190 Gflop/s"],
        ["copy 4.10 TB/s", "matmul 760 Tflop/s"],
        ["matmul 390 Tflop/s"],
    ]


def test_a_plot_is_drawn_when_it_comes_near(browser):
    resize(browser, 1280, 300)
    browser.refresh()
    last = "document.querySelector('#scaling .plot')"
    assert not browser.execute_script(f"return {last}.classList.contains('js-plotly-plot')")
    browser.execute_script(f"{last}.scrollIntoView()")
    wait(browser, f"return {last}.querySelectorAll('.points .point').length === 6")


def test_everything_works_from_the_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    def focus():
        return browser.execute_script("return document.activeElement.textContent.trim()")

    def tab():
        browser.switch_to.active_element.send_keys(Keys.TAB)

    tab()
    assert focus() == "Skip to the table"
    assert browser.switch_to.active_element.rect["x"] >= 0
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.execute_script("return location.hash") == "#table"
    tab()
    assert focus() == "operator"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(outline) == "solid"
    for _ in range(5):
        tab()
    assert focus() == "median ms"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    heading = browser.find_element("css selector", "[data-key=time]")
    assert heading.get_attribute("aria-sort") == "ascending"
    times = [ROWS[i].time.median for i in shown(browser) if ROWS[i].time]
    assert times == sorted(times)
    assert focus() == "median ms"


def test_every_control_has_a_name(browser):
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('select, button, [role=region], [role=img]')]"
        ".filter(e => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).length"
    )
    assert nameless == 0
    regions = browser.find_elements("css selector", ".scroll")
    assert [r.get_attribute("role") for r in regions] == ["region"] * 2
    assert [r.get_attribute("tabindex") for r in regions] == ["0"] * 2


def test_the_dark_scheme_reaches_page_and_plots(browser):
    plot = "document.querySelector('#speed .plot')"
    colours = (
        f"[getComputedStyle(document.body).backgroundColor, {plot}.layout.paper_bgcolor,"
        f" {plot}.data[0].marker.color]"
    )
    browser.execute_script("document.getElementById('speed').scrollIntoView()")
    light = wait(browser, f"return {plot}.data && {colours}")
    assert light == ["rgb(253, 253, 252)", "#fdfdfc", light[2]]
    scheme(browser, "dark")
    dark = wait(
        browser, f"return {plot}.data && {plot}.data[0].marker.color !== '{light[2]}' && {colours}"
    )
    assert dark == ["rgb(21, 23, 26)", "#15171a", dark[2]]


def test_every_cell_holds_what_it_shows(browser):
    """Columns have fixed widths: a heading or a number that is wider would run into the next."""
    cells = "[...document.querySelectorAll('.tall th button, .tall td.number')]"
    wider = f"{cells}.filter(c => c.scrollWidth > c.clientWidth).map(c => c.textContent)"
    assert browser.execute_script(f"return {cells}.length") > 0
    assert browser.execute_script(f"return {wider}") == []


def test_a_phone_never_scrolls_sideways(browser):
    resize(browser, 390, 844)
    browser.refresh()
    drawn(browser)
    width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width == [390, 390]
    table = "const t = document.getElementById('table'); return t.scrollWidth > t.clientWidth"
    assert browser.execute_script(table)
    wide = (
        "return [...document.querySelectorAll('.plot svg')].filter(s => s.clientWidth > 390).length"
    )
    assert browser.execute_script(wide) == 0


def test_plots_follow_the_window(browser):
    drawn(browser)
    resize(browser, 390, 844)
    wait(
        browser,
        "return [...document.querySelectorAll('.plot .main-svg')].every(s => s.clientWidth < 390)",
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
