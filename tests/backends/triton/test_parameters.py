"""Launches by the CUDA driver itself: the same ones that Triton makes, in any thread, or none."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import driver, parameters
from transfuse.backends.triton.build import Strange
from transfuse.backends.triton.installed import any_row
from transfuse.backends.triton.parameters import ParameterBuffers
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, sigmoid

from .conftest import Child

PLAIN, SOFTMAX, POOL, NORM, MAX = OPERATORS
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """``launches.py``, with a driver that only looks."""
    import triton

    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler, which Triton needs to launch anything")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    options = ["-O1", "-shared", "-fPIC", f"-I{include}", f"-Wl,-soname,{library.name}"]
    source = HERE / "stub" / "libcuda.c"
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True)
    child = Child(
        str(library),
        script="launches.py",
        TRITON_INTERPRET="0",
        TRITON_LIBCUDA_PATH=str(folder),
        TRITON_CACHE_DIR=str(folder / "compiled"),
    )
    yield child
    child.close()


SMALL = {"stages": (conv_transpose(2),), "problem": Problem.parse("n1 ci16 co16 i8x8 k3 fp16")}


def case(slug: str, arithmetic: str) -> dict[str, Any]:
    found = OPERATORS[slug].case("benchmark").on(arithmetic, "cuda")
    stages, problem = OPERATORS[slug].bound(found).stages, replace(found.problem, batch=2)
    return {"stages": stages, "problem": problem}


SMALL_KERNELS = (
    "pack convolve_strip convolve_carefully" if any_row() else "pack convolve convolve_carefully"
)
JOBS: dict[str, tuple[dict[str, Any], str, int]] = {
    "small": (SMALL, SMALL_KERNELS, 3 if any_row() else 2),
    "an input in place": (
        SMALL | {"problem": Problem.parse("n1 ci16 co5 i8x8 k2 s2 fp16")},
        "pack_phases multiply",
        2,
    ),
    "softmax tf32": (
        case(SOFTMAX, "tf32"),
        *(
            ("pack convolve_strip convolve_carefully", 3)
            if any_row()
            else ("pack convolve convolve_carefully", 2)
        ),
    ),
    "windows": (case(MAX, "fp16"), "pack convolve_window convolve_carefully finish", 2),
    "statistics": (case(NORM, "fp16"), "pack convolve convolve_carefully merge finish finish", 2),
    "sigmoid of fp64": (
        {
            "stages": (conv_transpose(1, "bias"), sigmoid()),
            "problem": Problem.parse("n2 ci5 co7 i9 k3 s2 fp64"),
        },
        "pack convolve convolve_carefully",
        2,
    ),
    "no maps": (SMALL | {"capability": 80}, "pack convolve convolve_carefully", 0),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_triton_passes(name: str, launches: Child) -> None:
    """Grid, block, shared memory, stream and every byte of every parameter, also at new places."""
    job, kernels, maps = JOBS[name]
    found = launches(do="same", **job)
    assert found["kernels"] == kernels.split()
    assert found["same"] == [True] * 3
    assert found["launched"] == [len(kernels.split())] * 3
    assert found["moved"], "scratch memory at another place is not the same launch"
    assert found["maps"] == maps


@pytest.mark.parametrize("name", ["small", "an input in place", "sigmoid of fp64"])
def test_a_settled_call(name: str, launches: Child) -> None:
    """It launches what Triton would wherever its tensors lie, and does little else."""
    found = launches(do="again", **JOBS[name][0])
    assert found["same"] == [True] * 6
    assert found["plans"] == 2, "one for addresses that are multiples of 16, one for others"
    assert len(found["functions"]) <= 10 + JOBS[name][2], " ".join(found["functions"])


def test_threads(launches: Child) -> None:
    found = launches(do="threads", **SMALL)
    assert found["raised"] == []
    assert found["launched"]
    assert found["mixed"] == 0
    assert found["calls"] == 160
    assert found["kept"] == 1, "one for their one place"


def test_what_the_driver_refuses_is_raised_by_its_name(launches: Child) -> None:
    found = launches(do="failing", code=701, **SMALL)
    assert found["raised"] == "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701), launching pack"
    assert found["after"]


def test_a_thread_of_no_context(launches: Child) -> None:
    assert launches(do="fresh", **SMALL)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize("chained", [True, False])
def test_a_profiler_is_told(hook: str, chained: bool, launches: Child) -> None:
    found = launches(do="watched", hook=hook, chained=chained, **SMALL)
    count = found["launches"]
    assert found["alone"] == (count, 0)
    assert found["hooked"] == (count, count)
    assert found["told"] == count


GRID = "convolve_carefully needs more than a grid"
STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "clusters": ({"changes": {"num_ctas": 2}}, GRID),
    "cooperative": ({"changes": {"launch_cooperative_grid": True}}, GRID),
    "dependent": ({"changes": {"launch_pdl": True}}, GRID),
    "scratch": ({"changes": {"global_scratch_size": 64}}, GRID),
    "profile": ({"changes": {"profile_scratch_size": 64}}, GRID),
    "one more": ({"changes": {}, "sizes": "one more"}, "pack has "),
    "one less": ({"changes": {}, "sizes": "one less"}, "pack has "),
    "of another size": ({"changes": {}, "sizes": "another"}, "in 4 bytes"),
    "an old driver": ({"changes": {}, "lacking": "the CUDA driver has no such"}, "has no such"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_triton_launches_what_is_not_understood(name: str, launches: Child) -> None:
    """And the log says why, once."""
    job, reason = STRANGE[name]
    found = launches(do="strange", **job, **SMALL)
    assert not found["buffers"]
    assert found["launched"]
    (line,) = found["log"]
    assert line.startswith("kernels are launched by Triton's own launcher, which takes longer: ")
    assert reason in line


@pytest.mark.parametrize("name", ["small", "statistics", "no maps"])
def test_launches_from_the_store(name: str, launches: Child, tmp_path: Path) -> None:
    """Neither a C compiler nor Triton's is asked for, and launches are the same to the last bit."""
    job, kernels, _ = JOBS[name]
    found = launches(do="stored", folder=str(tmp_path), **job)
    assert found["same"]
    assert found["compiled"] == []
    assert found["log"] == []
    assert found["launched"] == len(kernels.split())
    assert 2 <= found["files"] <= len(kernels.split())


def test_what_the_driver_does_not_take_is_compiled(launches: Child, tmp_path: Path) -> None:
    """And each is said in a line: a driver may be older than the compiler of a stored kernel."""
    found = launches(do="stored", folder=str(tmp_path), refused=True, **SMALL)
    assert found["same"]
    names = SMALL_KERNELS.split()
    assert found["compiled"] == sorted(names)
    assert sorted(found["log"]) == sorted(
        f"the stored kernel {kernel} is left out, and compiled here: no binary for this GPU"
        for kernel in names
    )


def test_buffers_move_to_places_beyond_those_kept(launches: Child) -> None:
    """Scratch memory may be another one at each call: none is laid out for it once there are many.

    A moved buffer's launches are those of a new one, to the last bit.
    """
    found = launches(do="places", count=90, **SMALL)
    assert max(found["kept"]) == parameters.PLACES
    assert found["made"] == parameters.PLACES
    assert found["same"]


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "library", lambda: None)
    driver.lacking.cache_clear()
    assert driver.lacking() == "there is no CUDA driver, libcuda.so.1"
    assert ParameterBuffers.of([], 0, 0, []) is None
    driver.lacking.cache_clear()


class Old:
    """A driver of CUDA 12.0."""

    cuLaunchKernelEx = cuTensorMapEncodeTiled = None


def test_a_driver_that_does_not_tell_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "library", Old)
    driver.lacking.cache_clear()
    lacking = driver.lacking()
    driver.lacking.cache_clear()
    assert lacking == "the CUDA driver has no cuFuncGetParamInfo, which came with CUDA 12.4"


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        (1, 4, "01000000"),
        (-2, 4, "feffffff"),
        (2**32 + 5, 8, "0500000001000000"),
        (True, 1, "01"),
        (1.0, 4, "0000803f"),
        (1.0, 8, "000000000000f03f"),
        (1e300, 4, "0000807f"),  # as C rounds it
        (0.1, 4, "cdcccc3d"),
        (-0.0, 4, "00000080"),
    ],
)
def test_numbers(value: Any, size: int, expected: str) -> None:
    assert parameters.number(value, size).hex() == expected


@pytest.mark.parametrize(("value", "size"), [(1.0, 2), (1, 16), ("a", 4), (None, 4)])
def test_numbers_of_no_known_form(value: Any, size: int) -> None:
    with pytest.raises(Strange, match=f"in {size} bytes"):
        parameters.number(value, size)


def test_a_launch_is_told_in_56_bytes() -> None:
    """As ``cuda.h`` has it on every 64-bit platform."""
    told = driver.LaunchConfig
    offsets = {name: getattr(told, name).offset for name, _ in told._fields_}
    assert offsets == {
        "grid": 0, "block": 12, "shared": 24, "stream": 32, "attributes": 40, "count": 48,
    }  # fmt: skip
    assert parameters.CONFIG == 56
