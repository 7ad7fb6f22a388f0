"""The page in a real browser, used as a reader would: on a desk and on a phone, day and night."""

import re

import pytest

from tests.report.made import LINK, MAX, OURS, RESULTS, ROWS, resize, scheme
from transfuse.report import build

WIDTHS = [(1280, 900), (390, 844)]


def wait(browser, script):
    """Until the script gives something true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda b: b.execute_script(script))


def shown(browser, what="tr"):
    """The rows on show, as places in ROWS, in the order of the page."""
    found = browser.execute_script(
        f"return [...document.querySelectorAll('{what}[data-row]')]"
        ".filter(e => e.getBoundingClientRect().height || e.getBoundingClientRect().width)"
        ".map(e => Number(e.dataset.row))"
    )
    return found


def choose(browser, name, value):
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("name", name)).select_by_visible_text(value)


def drawn(browser):
    """The rows of the bars of speed and memory, of the roofline and of the curves."""
    return [sorted(shown(browser, f"#{name} {mark}")) for name, mark in DRAWN]


DRAWN = (("speed", ".bar"), ("memory", ".bar"), ("roof", ".mark"), ("scaling", ".mark"))


def panel(r):
    """The operator and the set of cases; all models together."""
    return ("models",) if r.model else (r.slug, r.name.split()[0])


def expected(kept):
    """The same, from the rows; memory is drawn where an operator's case set has any at all."""
    timed = [i for i in kept if ROWS[i].time]
    bars = [i for i in timed if ROWS[i].variant != OURS and not ROWS[i].axis]
    measured = {panel(r) for r in ROWS if r.peak_bytes}
    memory = [i for i in timed if not ROWS[i].axis and panel(ROWS[i]) in measured]
    return [bars, memory, timed, [i for i in timed if ROWS[i].axis]]


def spoken(text):
    """Numbers inside text count as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def label(r):
    return f"{r.name}, {r.axis} {r.at}" if r.axis else r.name


COLUMNS = {
    "case": lambda r: spoken(label(r)),
    "precision": lambda r: spoken(r.precision),
    "device": lambda r: spoken(r.device),
    "variant": lambda r: spoken(f"{r.variant} {r.backend}".strip()),
    "time": lambda r: r.time and r.time.median,
    "p20": lambda r: r.time and r.time.p20,
    "ratio": lambda r: r.ratio.median if r.ratio and r.variant != OURS else None,
    "of_floor": lambda r: r.of_floor,
    "of_definition": lambda r: r.of_definition,
    "error": lambda r: r.error if r.status == "ok" else None,
    "peak": lambda r: r.peak_bytes,
    "first": lambda r: r.first_call,
}
OF_MAX = [i for i, r in enumerate(ROWS) if r.slug == MAX]


def table(browser):
    """The rows of the operator whose results are of all kinds."""
    return [i for i in shown(browser) if i in OF_MAX]


def press(browser, key):
    fold = (
        "[...document.querySelectorAll('.operator')].find(d => d.textContent.includes('max-max'))"
    )
    browser.execute_script(f"{fold}.querySelector('[data-key={key}] button').click()")


@pytest.mark.parametrize("key", COLUMNS)
def test_every_column_sorts_both_ways(browser, key):
    value = COLUMNS[key]
    filled = [i for i in OF_MAX if value(ROWS[i]) is not None]
    empty = [i for i in OF_MAX if value(ROWS[i]) is None]
    for way, down in (("ascending", False), ("descending", True)):
        press(browser, key)
        # Equal values keep the order they had, which is the first one or the ascending one.
        filled = sorted(filled, key=lambda i: value(ROWS[i]), reverse=down)
        assert table(browser) == filled + empty
        states = browser.execute_script(
            "return [...document.querySelectorAll('th[aria-sort]')]"
            ".map(h => [h.dataset.key, h.getAttribute('aria-sort')])"
        )
        assert [state for state in states if state[1] != "none"] == [[key, way]]


def test_sorting_is_stable(browser):
    press(browser, "time")
    before = table(browser)
    press(browser, "precision")
    assert table(browser) == sorted(before, key=lambda i: ROWS[i].precision)


FILTERS = [
    ("operator", "max-max-sum", lambda r: r.slug == MAX),
    ("operator", "real models", lambda r: r.slug == "model"),
    ("precision", "bf16", lambda r: r.precision == "bf16"),
    ("device", "cuda:sm90", lambda r: r.device == "cuda:sm90"),
    ("variant", "torch eager", lambda r: r.variant == "torch eager"),
    ("variant", LINK, lambda r: r.variant == LINK),
    ("set", "sizes along batch", lambda r: r.axis == "batch"),
    ("run", "gpu.jsonl, run 2", lambda r: r.run == "gpu-2"),
]


@pytest.mark.parametrize(("name", "value", "keep"), FILTERS, ids=[f[1] for f in FILTERS])
def test_filters_act_on_table_and_charts_together(browser, name, value, keep):
    everything = list(range(len(ROWS)))
    assert sorted(shown(browser)) == everything
    assert drawn(browser) == expected(everything)
    choose(browser, name, value)
    kept = [i for i, r in enumerate(ROWS) if keep(r)]
    assert sorted(shown(browser)) == kept
    assert browser.find_element("id", "count").text == f"{len(kept)} of {len(ROWS)} rows"
    assert drawn(browser) == expected(kept)
    empty = "return [...document.querySelectorAll('.panel')].filter(p => p.offsetHeight"
    assert browser.execute_script(f"{empty} && !p.querySelector('[data-row]:not([hidden])'))") == []


def test_reset_shows_everything_again(browser):
    choose(browser, "operator", "max-max-sum")
    choose(browser, "device", "cpu")
    choose(browser, "outcome", "slower")
    assert shown(browser) == [2]
    choose(browser, "outcome", "no difference")
    assert shown(browser) == []
    browser.find_element("css selector", "button[type=reset]").click()
    wait(browser, f"return document.getElementById('count').textContent.startsWith('{len(ROWS)} ')")
    assert len(shown(browser)) == len(ROWS)


def test_a_losing_bar_lies_left_of_one(browser):
    """And ends, like the others, where its ratio is on a logarithmic scale."""
    bars = browser.execute_script(
        "return [...document.querySelectorAll('#speed .bar[data-row]')].map(b => {"
        " const [one, bar] = [b.querySelector('.one'), b.querySelector('b')]"
        "   .map(e => e.getBoundingClientRect());"
        " return [Number(b.dataset.row), bar.left - one.left, bar.right - one.left] })"
    )
    lengths = {}
    for at, left, right in bars:
        ratio = ROWS[at].ratio.median
        assert (left < -3) == (ratio < 0.95), ROWS[at]
        lengths[at] = right if ratio > 1 else -left
    twice, half = (next(i for i, r in enumerate(ROWS) if i in lengths and r.ratio.median == each)
                   for each in (2.0, 0.5))  # fmt: skip
    assert lengths[twice] == pytest.approx(lengths[half], abs=2.5)


def test_a_bar_under_the_pointer_tells_its_row(browser):
    [bar] = browser.find_elements("css selector", "#speed .bar[data-row='2']")
    assert bar.get_attribute("title").splitlines() == [
        "torch compile",
        "max-max-sum, benchmark",
        "fp32, cpu, cpu.jsonl",
        "0.500 ms (0.455–0.556)",  # noqa: RUF001
        "0.50x (0.45x–0.55x)",  # noqa: RUF001
        "80.0 Gflop/s, 40.0 % of floor",
        "20.0 % of the definition's floor",
    ]


def test_the_roofline_is_that_of_each_run(browser):
    texts = browser.execute_script(
        "return [...document.querySelectorAll('#roof svg')].map(s =>"
        " [...s.querySelectorAll('.ceiling + text')].map(t => t.textContent))"
    )
    assert texts == [
        ["copy 21.3 GB/s", "matmul 190 Gflop/s"],
        ["copy 4.10 TB/s", "matmul 760 Tflop/s"],
        ["matmul 390 Tflop/s"],
    ]


def test_everything_works_from_the_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    browser.refresh()

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
    assert focus().startswith("max-max-sum")
    tab()
    assert focus() == "case"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(outline) == "solid"
    for _ in range(4):
        tab()
    assert focus() == "median ms"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    heading = browser.find_element("css selector", "[data-key=time]")
    assert heading.get_attribute("aria-sort") == "ascending"
    times = [ROWS[i].time.median for i in table(browser) if ROWS[i].time]
    assert times == sorted(times)
    assert focus() == "median ms"


def test_every_control_has_a_name(browser):
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('select, button, summary, [role=img]')]"
        ".filter(e => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).length"
    )
    assert nameless == 0


def test_the_dark_scheme_reaches_page_and_charts(browser):
    colours = (
        "return ['body', '#speed b', '#roof .mark'].map((s, i) => {"
        " const style = getComputedStyle(document.querySelector(s));"
        " return i < 2 ? style.backgroundColor : style.stroke })"
    )
    light = browser.execute_script(colours)
    scheme(browser, "dark")
    dark = browser.execute_script(colours)
    assert (light[0], dark[0]) == ("rgb(253, 253, 252)", "rgb(21, 23, 26)")
    assert all(one != other for one, other in zip(light, dark, strict=True))


def fits(browser, width, height):
    """Nothing is clipped or runs out of the page, with everything unfolded."""
    resize(browser, width, height)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    cells = (
        "[...document.querySelectorAll('td, th, th button, .bar span, .bar small, figcaption, p, "
        "dd, h1, h2, h3, summary, code, svg')].filter(e => e.getBoundingClientRect().width)"
    )
    assert browser.execute_script(f"return {cells}.length") > 100
    clipped = (
        f"return {cells}.filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth"
        " || e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 200))"
    )
    assert browser.execute_script(clipped) == []


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_nothing_is_clipped_or_runs_out_of_the_page(browser, width, height):
    fits(browser, width, height)


@pytest.mark.parametrize(("width", "height"), WIDTHS)
def test_the_repository_s_results_fit_too(browser, tmp_path, width, height):
    """Five ways to run a model beside each other, and long commands."""
    path = tmp_path / "report.html"
    path.write_text(build(RESULTS, "transfuse report"), encoding="utf-8")
    browser.get(path.as_uri())
    fits(browser, width, height)


def test_a_phone_reads_the_name_of_each_value(browser):
    resize(browser, 390, 844)
    named = browser.execute_script(
        "return [...document.querySelector('tr[data-row]').cells]"
        ".map(c => getComputedStyle(c, '::before').content)"
    )
    titles = browser.execute_script(
        "return [...document.querySelector('.results thead tr').cells]"
        ".map(c => c.textContent.trim())"
    )
    assert [each.strip('"') for each in named] == titles
