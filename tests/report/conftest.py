"""A page of made-up results, and a browser to open it in."""

import os
import shutil

import pytest

from tests.report.made import CPU, GPU, GPU_AGAIN, ON_CPU, ON_GPU, TAG, resize, scheme
from transfuse.bench.record import append
from transfuse.report import build


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
    chromium.execute_script("document.querySelectorAll('.operator').forEach(d => d.open = true)")
    yield chromium
    assert chromium.get_log("browser") == []
    assert chromium.execute_script("return window.hacked") is None
    assert chromium.execute_script("return performance.getEntriesByType('resource')") == []
