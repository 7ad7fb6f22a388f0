"""The core's functions as C sees them: whatever is passed, they say what is wrong and go on."""

import ctypes
import subprocess
import sys
from typing import Any

import pytest
import torch

from transfuse.backends.cpu import library

OP = {name: i for i, name in enumerate(library.OPS)}


def step(
    op: str | int, i0: int = 0, kernel: int = 1, stride: int = 1, padding: int = 0
) -> library.Step:
    sizes = (library.Sizes(value, value, value) for value in (kernel, stride, padding))
    return library.Step(OP.get(op, op), i0, *sizes, 0.0, 1.0, None, None)


class Run:
    """A program of 1 x 2 x 4 x 4 x 4 values with memory of its own."""

    def __init__(self, *steps: library.Step, **fields: Any) -> None:
        self.steps = (library.Step * max(1, len(steps)))(*steps)
        ones, zeros = library.Sizes(1, 1, 1), library.Sizes(0, 0, 0)
        self.memory = [torch.ones(4096, dtype=torch.float64) for _ in range(3)]
        packed, x, self.out = self.memory
        dense = library.Strides(128, 64, 16, 4, 1)
        values: dict[str, Any] = {
            "batch": 1,
            "in_channels": 2,
            "out_channels": 2,
            "groups": 1,
            "spatial": library.Sizes(4, 4, 4),
            "kernel": ones,
            "stride": ones,
            "padding": zeros,
            "dilation": ones,
            "output_padding": zeros,
            "steps_count": len(steps),
            "steps": self.steps,
            "input": x.data_ptr(),
            "input_strides": dense,
            "weights": packed.data_ptr(),
            "output": self.out.data_ptr(),
            "output_strides": dense,
            "weight_scale": 1.0,
        }
        self.program = library.Program(**(values | fields))

    def message(self, core: ctypes.CDLL, threads: int = 1) -> str:
        """What a run says; nothing, and the output must have been written."""
        self.out.fill_(77)
        status = core.transfuse_run(self.program, threads)
        written = bool((self.out != 77).any())
        assert status == int(not written)
        return core.transfuse_message().decode() if status else ""


def sizes(value: int) -> Any:
    return library.Sizes(1, value, 1)


def test_a_program_that_is_legal_runs(core: ctypes.CDLL) -> None:
    assert not Run().message(core)
    assert not Run(step("max_pool", 0, 2, 2), step("sum")).message(core)
    assert not Run(step("batch_stats"), step("cut"), step("batch_apply")).message(core)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"element": 4}, "element must be 0 to 3, but got 4"),
        ({"element": -1}, "element must be"),
        ({"batch": -1}, "batch must be"),
        ({"batch": 2**62}, "batch must be"),
        ({"in_channels": 0}, "in_channels must be"),
        ({"out_channels": -(2**63)}, "out_channels must be"),
        ({"groups": 0}, "0 groups do not divide"),
        ({"groups": 3}, "3 groups do not divide"),
        ({"spatial": sizes(0)}, "spatial size must be"),
        ({"spatial": sizes(2**48)}, "input of size"),
        ({"kernel": sizes(2**62)}, "kernel must be"),
        ({"kernel": sizes(2**31)}, "more than 2^31 - 1 taps"),
        ({"stride": sizes(0)}, "stride must be 1 to 2147483647, but got 0"),
        ({"stride": sizes(2**31)}, "stride must be"),
        ({"stride": library.Sizes(INT := 2**31 - 1, INT, INT)}, "output"),
        ({"dilation": sizes(-1)}, "dilation must be"),
        ({"padding": sizes(2**31 - 1)}, "less than 1"),
        ({"padding": sizes(-(2**31))}, "padding must be -2147483647 to 2147483647"),
        ({"padding": sizes(2**31)}, "padding must be"),
        ({"output_padding": sizes(-(2**34))}, "output_padding must be -8589934592 to 8589934592"),
        ({"output_padding": sizes(2**34)}, "output_padding must be"),
        ({"output_padding": sizes(-8)}, "less than 1"),
        ({"steps_count": -1}, "steps_count must be"),
        ({"steps_count": 1, "steps": None}, "steps is a null pointer"),
        ({"before_count": -1}, "before_count must be"),
        ({"before_count": 1}, "steps before the convolution is a null pointer"),
        ({"input": None}, "input is a null pointer"),
        ({"weights": None}, "weights is a null pointer"),
        ({"output": None}, "output is a null pointer"),
        ({"input_strides": library.Strides(0, 2**62 + 1, 0, 0, 0)}, "input_strides must be"),
        ({"output_strides": library.Strides(0, 0, 2**58, 2**58, 2**58)}, "beyond 2^62 bytes"),
        ({"output_strides": library.Strides(0, -1, 0, 0, 0)}, "output_strides must be"),
    ],
)
def test_a_field_out_of_range_is_refused(
    core: ctypes.CDLL, fields: dict[str, Any], says: str
) -> None:
    assert says in Run(**fields).message(core)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([step(len(library.OPS))], "operation of a step must be"),
        ([step(-1)], "operation of a step must be"),
        ([step("max_pool", 0, 0)], "kernel of a pool"),
        ([step("max_pool", 0, 1, 0)], "stride of a pool"),
        ([step("max_pool", 0, 2, 1, 2)], "padding of a pool"),
        ([step("max_pool", 0, 5)], "larger than the 4 values"),
        ([step("sum_pool", 0, 2**63 - 1, 1, 2**62)], "kernel of a pool"),
        ([step("group_norm", 0)], "0 groups do not divide"),
        ([step("group_norm", 2**40)], "1099511627776 groups do not divide"),
        ([step("batch_stats")], "never applied"),
        ([step("batch_apply")], "that no earlier segment gathered"),
        ([step("batch_stats"), step("batch_apply")], "that no earlier segment gathered"),
        ([step("batch_stats"), step("cut"), step("exp_apply")], "that no earlier segment gathered"),
        (
            [step("batch_stats"), step("cut"), step("sum"), step("batch_apply")],
            "gathered for 1 channels",
        ),
        (
            [step("batch_stats"), step("max_pool", 0, 2), step("cut"), step("batch_apply")],
            "windows overlap",
        ),
    ],
)
def test_a_step_out_of_range_or_order_is_refused(
    core: ctypes.CDLL, steps: list[library.Step], says: str
) -> None:
    assert says in Run(*steps).message(core)
    with pytest.raises(RuntimeError, match=r"."):
        core.transfuse_packed_bytes(Run(*steps).program)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            [step("tanh")],
            "operation 5 cannot come before the convolution: it is no map and",
        ),
        ([step("sign_pool")], "it is no map and no pool"),
        ([step(-1)], "operation -1 cannot come before the convolution"),
        ([step("max_pool", 0, 2)] * 2, "it is no map, and not the one pool"),
        ([step("max_pool", 0, 5)], "larger than the 4 values"),
        ([step("map")], "map of a step is a null pointer"),
    ],
)
def test_a_step_before_the_convolution_that_is_none_is_refused(
    core: ctypes.CDLL, steps: list[library.Step], says: str
) -> None:
    before = (library.Step * len(steps))(*steps)
    run = Run(before=before, before_count=len(steps))
    assert says in run.message(core)
    with pytest.raises(RuntimeError, match=r"."):
        core.transfuse_packed_bytes(run.program)
    assert core.transfuse_copies(run.program, library.Times()) == 1


def test_null_pointers_and_counts(core: ctypes.CDLL) -> None:
    run = Run()
    assert core.transfuse_run(None, 1) == 1
    assert core.transfuse_message() == b"program is a null pointer"
    strides = library.Strides(2, 1, 1, 1, 1)
    memory = run.out.data_ptr()
    for arguments in (
        (None, memory, strides, 1, memory),
        (run.program, None, strides, 1, memory),
        (run.program, memory, strides, 0, memory),
        (run.program, memory, strides, 1, None),
    ):
        assert core.transfuse_pack(*arguments) == 1
    found = library.Digest()
    for data, count, threads in ((None, 1, 1), (memory, -1, 1), (memory, 2**62, 1), (memory, 8, 0)):
        assert core.transfuse_digest(data, count, threads, found) == 1
    for values, count, element in ((None, 1, 0), (memory, -1, 0), (memory, 1, 4), (memory, 1, -1)):
        with pytest.raises(RuntimeError, match=r"values|count|element"):
            core.transfuse_finite(values, count, element)
    assert core.transfuse_finite(None, 0, 0) == 1
    assert core.transfuse_use_isa(b"x" * 5000) == 1
    assert core.transfuse_message().startswith(b"this machine does not run xxx")


def test_threads(core: ctypes.CDLL) -> None:
    for threads in (0, -1, -(2**31)):
        assert f"threads must be at least 1, but got {threads}" in Run().message(core, threads)


def test_as_many_threads_as_an_integer_counts(core: ctypes.CDLL) -> None:
    """OpenMP ends a process that cannot start as many as it is told to."""
    assert core._name
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from pathlib import Path; import sys\n"
            f"sys.path.insert(0, {str(library.Path(__file__).parent)!r})\n"
            "from test_cpu_boundary import Run, library\n"
            "assert Run().message(library.load(), 2**31 - 1) == ''",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr[-2000:]


def test_a_batch_of_none_needs_no_memory(core: ctypes.CDLL) -> None:
    program = Run(batch=0, input=None, output=None, weights=None).program
    assert core.transfuse_run(program, 1) == 0
