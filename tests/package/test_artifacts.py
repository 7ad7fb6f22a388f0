"""What `make wheel` made: what is in it, and that it runs where nothing else of the project is."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from transfuse.backends.triton.store.entry import parsed

ROOT = Path(__file__).parents[2]
DIST = os.environ.get("DIST")
pytestmark = pytest.mark.skipif(DIST is None, reason="no wheel to look at: make wheel")
FOLDER = ROOT / (DIST or "dist")
CORE = "transfuse/backends/cpu/libtransfuse_cpu.so"
HEADER = "transfuse/backends/cpu/include/transfuse.h"
KERNELS = "transfuse/backends/triton/kernels/"


def artifact(ending: str) -> Path:
    (found,) = FOLDER.glob(f"*{ending}")
    return found


@pytest.fixture(scope="module")
def wheel() -> dict[str, bytes]:
    """The wheel's files by name."""
    with zipfile.ZipFile(artifact(".whl")) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name[-1] != "/"}


@pytest.fixture(scope="module")
def sdist() -> dict[str, bytes]:
    """The sdist's files by name, below its one folder."""
    found = {}
    with tarfile.open(artifact(".tar.gz")) as opened:
        for member in opened.getmembers():
            content = opened.extractfile(member)
            if content is not None:
                found[member.name.partition("/")[2]] = content.read()
    return found


# ---- what is in it -------------------------------------------------------------------------


def test_one_of_each() -> None:
    assert len(list(FOLDER.iterdir())) == 2
    assert artifact(".tar.gz")


def test_the_wheel_is_for_every_python_on_many_linuxes() -> None:
    name = rf"transfuse-[\d.]+-py3-none-manylinux_2_\d+_{platform.machine()}.*\.whl"
    assert re.fullmatch(name, artifact(".whl").name)


def test_the_wheel_holds_what_a_user_needs(
    wheel: dict[str, bytes], sdist: dict[str, bytes]
) -> None:
    csrc = "src/transfuse/backends/cpu/csrc/"
    package = {
        name.removeprefix("src/")
        for name in sdist
        if name.startswith("src/") and not name.startswith(csrc)
    }
    assert "transfuse/py.typed" in package
    shipped = {
        name
        for name in wheel
        if ".dist-info/" not in name and not name.startswith(KERNELS)  # a wheel may have none
    }
    assert shipped == package | {CORE, HEADER}
    assert wheel[HEADER] == sdist[f"{csrc}transfuse.h"]


def test_kernels_are_whole_and_few_enough(wheel: dict[str, bytes]) -> None:
    kernels = {name: content for name, content in wheel.items() if name.startswith(KERNELS)}
    if not kernels:
        pytest.skip("no compiled kernels in this wheel: make kernels")
    assert sum(map(len, kernels.values())) <= 25_000_000
    for name, content in kernels.items():
        found = parsed(content, Path(name).stem)
        assert found.architecture in ("sm_80", "sm_90")
        assert str(ROOT).encode() not in found.code


def test_the_sdist_holds_what_the_repository_does(sdist: dict[str, bytes]) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: nothing says what belongs to the repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sdist.keys() == {*filter(None, listed.stdout.split("\0")), "PKG-INFO"}


def test_no_second_openmp_and_no_other_library(wheel: dict[str, bytes], tmp_path: Path) -> None:
    """torch's libgomp is there before the core is loaded: two would not know of each other."""
    assert [name for name in wheel if ".so" in name] == [CORE]
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    core = tmp_path / "core.so"
    core.write_bytes(wheel[CORE])
    told = subprocess.run(["readelf", "-d", core], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", told.stdout))
    needed = {name for name in needed if not name.startswith("ld-linux")}
    system = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"}
    assert needed == system | {"libgomp.so.1"}, "every manylinux has all but the last"
    assert "PATH)" not in told.stdout


def test_no_path_of_the_machine_that_built_it(wheel: dict[str, bytes]) -> None:
    for place in (ROOT, Path.home(), Path(tempfile.gettempdir())):
        for name, content in wheel.items():
            assert f"{place}/".encode() not in content, f"{place} in {name}"


def test_urls_lead_to_files_of_the_sdist(wheel: dict[str, bytes], sdist: dict[str, bytes]) -> None:
    (metadata,) = (wheel[name] for name in wheel if name.endswith(".dist-info/METADATA"))
    urls = HeaderParser().parsestr(metadata.decode()).get_all("Project-URL")
    assert urls
    for each in urls:
        assert each.partition(", ")[2] in sdist


# ---- in an empty environment -----------------------------------------------------------------


@pytest.fixture(scope="module", params=[".whl", ".tar.gz"])
def env(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment in which the artifact is installed, and what it needs."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    quiet = ("-qq", "--disable-pip-version-check")
    pip = [place / "bin/python", "-m", "pip", "install", *quiet, "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, artifact(request.param)], check=True, cwd=place)
    return place / "bin"


def said(env: Path, *command: str) -> str:
    """What a program of the environment prints, where it finds no other: no compiler either."""
    done = subprocess.run(
        [env / command[0], *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=env.parent,
        env={"PATH": str(env), "HOME": str(env.parent), "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_operator_runs_on_the_core(env: Path) -> None:
    """With one OpenMP in the process: torch's."""
    code = """
import re, sys, torch, transfuse
from transfuse.backends.cpu import library
x, w, b = torch.randn(2, 8, 6, 6, 6), torch.randn(8, 16, 5, 5, 5), torch.randn(16)
given = dict(stride=2, padding=2)
y = transfuse.conv_transpose3d_max_max_sum(x, w, b, **given, backend="cpu")
z = transfuse.conv_transpose3d_max_max_sum(x, w, b, **given, backend="eager")
torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-4)
print(transfuse.__file__)
print(library.path())
print(*sorted(set(re.findall(r"/\\S*gomp\\S*", open("/proc/self/maps").read()))))
"""
    place, core, openmp = said(env, "python", "-c", code).splitlines()
    assert Path(place).is_relative_to(env.parent)
    assert Path(core).is_relative_to(env.parent)
    assert re.fullmatch(r"\S+/torch/lib/libgomp\S*", openmp), "one OpenMP, torch's"


def test_the_commands_run(env: Path) -> None:
    assert re.search(r"backends\s+cpu", said(env, "transfuse", "env"))
    assert said(env, "transfuse", "list")
    told = said(env, "transfuse", "check", "--random", "1", "--dtype", "fp32", "--backend", "cpu")
    assert "passed" in told


def test_the_page_s_c_example_links(env: Path, tmp_path: Path) -> None:
    """Without torch OpenMP is the system's."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: cc, gcc or clang")
    page = (ROOT / "docs/c.md").read_text("utf-8")
    code, shown = (
        re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
        for language in ("c", "text")
    )
    source, program = tmp_path / "example.c", tmp_path / "example"
    source.write_text(code)
    ask = "from transfuse.backends.cpu import library; print(library.path())"
    here = Path(said(env, "python", "-c", ask).strip()).parent
    link = [f"-I{here}/include", f"-L{here}", "-ltransfuse_cpu", f"-Wl,-rpath,{here}"]
    subprocess.run([compiler, source, *link, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == shown
