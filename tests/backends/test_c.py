"""The C functions of the core: against loops in C, from NumPy without torch, what they refuse."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transfuse import fills
from transfuse.accuracy import Oracle
from transfuse.backends.cpu import library
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problems import document, slugs
from transfuse.reference import reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARY = library.path()
HEADER = Path(library.__file__).parent / "csrc/transfuse.h"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SUFFIXES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bf16": "bf16"}
KINDS = {"size_t": ctypes.c_size_t, "double": ctypes.c_double}

PLAIN, SOFTMAX, AVGPOOL, NORMS, MAXIMA = OPERATORS
built = pytest.mark.skipif(LIBRARY is None, reason="the compiled core is not installed")
compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang")
elements = pytest.mark.parametrize("dtype", SUFFIXES)
problems = pytest.mark.parametrize("slug", OPERATORS)


def fences(language: str) -> list[str]:
    text = (ROOT / "docs/c.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def name(slug: str, dtype: str) -> str:
    return f"transfuse_{slug.replace('-', '_')}_{SUFFIXES[dtype]}"


@cache
def function(slug: str, dtype: str) -> Any:
    """The function with its types, of which ctypes must be told; once, before threads call it."""
    found = getattr(library.load(), name(slug, dtype))
    parameters = document(slug).parameters
    found.argtypes = [ctypes.c_void_p if p.pointer else KINDS[p.type] for p in parameters]
    return found


def call(slug: str, dtype: str, arguments: dict[str, Any]) -> str:
    """The message of a call; empty where it succeeds."""
    values = [v.data_ptr() if isinstance(v, Tensor) else v for v in arguments.values()]
    core = library.load()
    assert core is not None
    return core.transfuse_message().decode() if function(slug, dtype)(*values) else ""


@pytest.fixture
def case(given: Callable[..., Any]) -> Callable[..., Any]:
    """A case with values; the kernel of C is dense, so batch norm's goes without its groups."""

    def make(slug: str, line: str, fill: Callable[..., Any] = fills.real) -> Any:
        made = given(slug, line)
        if slug == NORMS:
            dense = replace(made.case.problem, groups=1)
            made = replace(made, case=replace(made.case, problem=dense))
        x, weight, operands = fill(made.operator.bound(made.case), made.case.problem, 0)
        return replace(made, x=x, weight=weight, operands={k: operands[k] for k in made.operands})

    return make


def wrong(given: Any, y: Tensor) -> str:
    """What the oracle has against a result; empty where nothing."""
    chain, problem = given.operator.bound(given.case), given.case.problem
    ulp = torch.finfo(ELEMENTS[problem.dtype].compute).eps
    return Oracle(chain, problem, given.x, given.weight, given.operands, ulp).judge(y).fault


# ---- the header ----------------------------------------------------------------------------


def test_prototypes_are_those_of_the_documents() -> None:
    text = HEADER.read_text().replace("\\\n", " ")
    types = re.findall(r"PROBLEM\((\w+), (\w+)\)", text)
    assert types == [("f32", "float"), ("f64", "double"), ("f16", "uint16_t"), ("bf16", "uint16_t")]
    declared = {}
    for macro, problem, parameters in re.findall(
        r"#define (\w+)\(suffix, element\)\s+int transfuse_(\w+)_##suffix\((.*?)\)", text
    ):
        assert macro == f"TRANSFUSE_{problem.upper()}"
        assert f"\nTRANSFUSE_EACH_ELEMENT({macro});\n" in text
        declared[problem.replace("_", "-")] = " ".join(parameters.split())
    assert sorted(declared) == sorted(slugs())
    for slug, parameters in declared.items():
        for _, element in types:
            prototype = document(slug).c_signature(element)
            wanted = " ".join(prototype[prototype.index("(") + 1 : prototype.rindex(")")].split())
            assert re.sub(r"\belement\b", element, parameters) == wanted


@built
def test_the_installed_header_is_this_one() -> None:
    assert LIBRARY is not None
    assert (LIBRARY.parent / "include/transfuse.h").read_text() == HEADER.read_text()


@built
@problems
@elements
def test_the_library_has_every_function(slug: str, dtype: str) -> None:
    assert function(slug, dtype)


# ---- from C --------------------------------------------------------------------------------


def compiled(source: Path, to: Path) -> Path:
    """A program from strict C99, linked with the core."""
    assert COMPILER is not None
    assert LIBRARY is not None
    to = to / source.stem
    place = LIBRARY.parent
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{place / 'include'}"]
    link = [str(LIBRARY), f"-Wl,-rpath,{place}", "-lm"]
    subprocess.run([COMPILER, *flags, str(source), *link, "-o", str(to)], check=True)
    return to


def output(*command: object, env: dict[str, str] | None = None) -> str:
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@built
@compiler
def test_against_loops_in_c(tmp_path: Path) -> None:
    assert output(compiled(HERE / "problems.c", tmp_path)) == "all right\n"


@built
@compiler
def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    source = tmp_path / "example.c"
    source.write_text(fences("c")[0])
    assert output(compiled(source, tmp_path)) == fences("text")[0]


@built
def test_the_numpy_example_runs() -> None:
    exec(fences("py")[0], {"path": str(LIBRARY)})


@built
@compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_runs_out_is_an_error(threads: int, tmp_path: Path) -> None:
    """Every block in turn is refused, up to the first call that asks for fewer."""
    program = compiled(HERE / "memory.c", tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    for n in range(1, 100):
        lines = output(program, n, env=env).splitlines()
        assert set(lines) <= {"0 ", "1 out of memory"}
        if set(lines) == {"0 "}:
            break
    assert n > 5


# ---- results -------------------------------------------------------------------------------


@built
def test_all_twenty_from_numpy_without_torch(case: Callable[..., Any], tmp_path: Path) -> None:
    """Arrays go to a process that cannot import torch, and come back to the oracle."""
    givens, calls = [], []
    for slug in OPERATORS:
        for dtype in SUFFIXES:
            given = case(slug, f"small {dtype}")
            arguments, files = given.arguments(given.empty()), {}
            for p in document(slug).pointers:
                files[p.name] = f"{name(slug, dtype)}.{p.name}.npy"
                np.save(tmp_path / files[p.name], array(arguments[p.name]))
            listed = [
                (p.name, "pointer", None) if p.pointer else (p.name, p.type, arguments[p.name])
                for p in document(slug).parameters
            ]
            calls.append({"function": name(slug, dtype), "arrays": files, "arguments": listed})
            givens.append(given)
    assert len(calls) == 20
    (tmp_path / "calls.json").write_text(json.dumps(calls))

    def results(threads: int) -> list[Tensor]:
        output(
            *(sys.executable, HERE / "without_torch.py", LIBRARY, tmp_path),
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        loaded = (np.load(tmp_path / made["arrays"]["output"]) for made in calls)
        return [torch.from_numpy(a).view(g.x.dtype) for a, g in zip(loaded, givens, strict=True)]

    one, three = results(threads=1), results(threads=3)
    for made, given, y, same in zip(calls, givens, one, three, strict=True):
        assert not wrong(given, y), made["function"]
        assert torch.equal(y, same), made["function"]


def array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """NumPy has no bfloat16: its bits."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return bits.numpy()


@built
@problems
@elements
@pytest.mark.parametrize("line", ["small", "ragged"])
@pytest.mark.parametrize("fill", [fills.real, fills.integers, fills.special])
def test_results(
    slug: str, dtype: str, line: str, fill: Callable[..., Any], case: Callable[..., Any]
) -> None:
    given = case(slug, f"{line} {dtype}", fill)
    y = given.empty()
    assert call(slug, dtype, given.arguments(y)) == ""
    chain = given.operator.bound(given.case)
    if fill is fills.integers and chain.exact:
        operands = (given.x, given.weight, given.operands)
        assert torch.equal(y, reference(chain, given.case.problem, *operands).to(y.dtype))
    else:
        assert not wrong(given, y)


@built
@problems
@elements
@pytest.mark.parametrize("line", ["small", "ragged"])
def test_same_bits_as_from_python(
    slug: str, dtype: str, line: str, case: Callable[..., Any]
) -> None:
    given = case(slug, f"{line} {dtype}")
    y = given.empty()
    assert call(slug, dtype, given.arguments(y)) == ""
    assert torch.equal(y, given.function(backend="cpu"))


@built
def test_groups_of_batch_norm_are_only_carried_along(case: Callable[..., Any]) -> None:
    given = case(NORMS, "small")
    one, five = given.empty(), given.empty()
    assert call(NORMS, "fp32", given.arguments(one)) == ""
    assert call(NORMS, "fp32", given.arguments(five) | {"groups": 5}) == ""
    assert torch.equal(one, five)


WEIGHTS = ("bn_weight", "gn_weight")


@built
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize(
    ("slug", "operand"),
    [(s, o) for s, op in OPERATORS.items() for o in op.operands if o not in WEIGHTS],
)
def test_operands_that_are_not_finite(
    slug: str, operand: str, value: float, case: Callable[..., Any]
) -> None:
    """The rewrites that take a finite bias for granted are left out."""
    given = case(slug, "small", fills.integers)
    given.operands[operand][1] = value
    if operand == "conv_bias":  # -inf beside finite values in a window: -inf + inf is its maximum
        given.x.view(-1)[0] = -torch.inf
        given.weight.fill_(1)
    y = given.empty()
    assert call(slug, "fp32", given.arguments(y)) == ""
    assert not wrong(given, y)


@built
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("operand", WEIGHTS)
def test_norm_weights_that_are_infinite(
    operand: str, sign: float, case: Callable[..., Any]
) -> None:
    """(y - mean) * inf is an infinity with the sign of y - mean: as with a very large weight.

    torch multiplies out, y * inf - mean * inf, which is NaN: it is no oracle here.
    """
    given = case(NORMS, "small")
    y, large = given.empty(), given.empty()
    given.operands[operand].fill_(sign * torch.inf)
    assert call(NORMS, "fp32", given.arguments(y)) == ""
    given.operands[operand].fill_(sign * 1e30)
    assert call(NORMS, "fp32", given.arguments(large)) == ""
    assert not wrong(given, large)
    assert torch.equal(y, large * torch.inf if operand == "gn_weight" else large)


@built
def test_an_infinite_weight_times_nothing(case: Callable[..., Any]) -> None:
    """0 * inf is NaN and wins its window, where the window's maximum alone would be finite."""
    given = case(NORMS, "n1 ci1 co2 i4x4 k1 s1 p0 num_groups=2")
    given.x.copy_(torch.tensor([[1, 0, -1, -1], [2, 0, -0.5, -0.5]]).repeat(2, 1))
    given.weight.fill_(1)
    given.operands["bn_weight"][:] = torch.tensor([1, torch.inf])
    y = given.empty()
    assert call(NORMS, "fp32", given.arguments(y)) == ""
    assert y[0, 0].isfinite().all()
    assert y[0, 1].isnan().all()


@built
@pytest.mark.parametrize("operand", WEIGHTS)
def test_norm_weights_that_are_nan(operand: str, case: Callable[..., Any]) -> None:
    given = case(NORMS, "small", fills.integers)
    given.operands[operand][1] = torch.nan
    y = given.empty()
    assert call(NORMS, "fp32", given.arguments(y)) == ""
    assert not wrong(given, y)


@built
@pytest.mark.parametrize(("low", "high"), [(-60.0, 60.0), (0.0, 300.0), (50.0, 1.0), (-1e30, 1e30)])
@elements
def test_clamps_too_wide_for_a_bounded_softmax(
    low: float, high: float, dtype: str, case: Callable[..., Any]
) -> None:
    given = case(AVGPOOL, f"small {dtype}")
    scalars = given.case.scalars | {"clamp_min": low, "clamp_max": high}
    given = replace(given, case=replace(given.case, scalars=scalars))
    given.x.mul_(400)
    y = given.empty()
    assert call(AVGPOOL, dtype, given.arguments(y)) == ""
    assert not wrong(given, y)


@built
@pytest.mark.parametrize(
    ("slug", "line"),
    [
        (NORMS, "n2 ci40 co16 i100x100 k3 s2 p1 num_groups=1"),  # a group that no tile holds
        (NORMS, "n2 ci2 co6 i60x50 k3 s2 p1 num_groups=2"),  # computed twice
        (AVGPOOL, "n2 ci2 co6 i16x20x20 k3 s2 p1 pool_kernel=2 clamp_min=0 clamp_max=1"),
        (AVGPOOL, "n1 ci40 co6 i16x16x16 k3 s2 p1 pool_kernel=3 clamp_min=0 clamp_max=1"),
    ],
)
def test_cuts_of_larger_problems(slug: str, line: str, case: Callable[..., Any]) -> None:
    """Values stored or computed twice, statistics of many tiles: as the plan has it in Python."""
    given = case(slug, line)
    y = given.empty()
    assert call(slug, "fp32", given.arguments(y)) == ""
    assert not wrong(given, y)
    assert torch.equal(y, given.function(backend="cpu"))


@built
@problems
def test_many_threads_call_at_once(slug: str, case: Callable[..., Any]) -> None:
    given = case(slug, "small")
    outputs = [given.empty() for _ in range(32)]
    bad = given.arguments(given.empty()) | {"stride_w": 0}

    assert call(slug, "fp32", given.arguments(given.empty())) == ""

    def run(y: Tensor) -> tuple[str, str]:
        return call(slug, "fp32", given.arguments(y)), call(slug, "fp32", bad)

    with ThreadPoolExecutor(8) as pool:
        for good, refused in pool.map(run, outputs):
            assert (good, "stride must be at least 1" in refused) == ("", True)
    assert all(torch.equal(y, outputs[0]) for y in outputs)


@built
@problems
def test_batch_0(slug: str, case: Callable[..., Any]) -> None:
    given = case(slug, "small")
    y = given.empty()
    arguments = given.arguments(y) | {"batch_size": 0}
    assert call(slug, "fp32", arguments) == ""
    assert call(slug, "fp32", arguments | {"input": None, "output": None}) == ""
    assert y.isnan().all()
    assert "must be at least 1" in call(slug, "fp32", arguments | {"in_channels": 0})
    assert call(slug, "fp32", arguments | {"kernel": None}) == "kernel is a null pointer"


# ---- refusals ------------------------------------------------------------------------------

HUGE = 2**64 - 1
"""-1 as a size_t."""
BAD: list[tuple[str, dict[str, int], str]] = [
    # Without words of their own, Python's: solution() on the same sizes says the very same.
    (PLAIN, {"groups": 0}, ""),
    (PLAIN, {"groups": 5}, ""),
    (PLAIN, {"groups": 4}, ""),
    (PLAIN, {"in_channels": 0}, ""),
    (PLAIN, {"out_channels": 0}, ""),
    (PLAIN, {"height": 0}, ""),
    (PLAIN, {"kernel_w": 0}, ""),
    (PLAIN, {"stride_h": 0}, ""),
    (PLAIN, {"dilation_w": 0}, ""),
    (PLAIN, {"padding_h": 40}, ""),
    (PLAIN, {"padding_h": 7, "kernel_h": 1, "stride_h": 3}, ""),
    (PLAIN, {"output_padding_h": 2}, ""),
    (PLAIN, {"output_padding_w": 3, "dilation_w": 2}, ""),
    (PLAIN, {"batch_size": HUGE}, rf"batch must be at most 2147483647, but got batch={HUGE}"),
    (PLAIN, {"padding_w": HUGE}, r"padding must be at most 2147483647, but got padding=\[1, 18446"),
    (PLAIN, {"groups": 2**31}, r"groups must be at most 2147483647, but got groups=2147483648"),
    (
        PLAIN,
        {"batch_size": 2**31 - 1, "height": 2**31 - 1, "width": 2**31 - 1},
        r"input of size \[2147483647, 6, 2147483647, 2147483647\] has more than 2\^48 elements",
    ),
    (
        PLAIN,
        {"kernel_h": 2**31 - 1, "kernel_w": 2**31 - 1},
        r"kernel of size \[6, 2, 2147483647, 2147483647\] has more than 2\^48 elements",
    ),
    (
        PLAIN,
        {"stride_h": 2**31 - 1, "stride_w": 2**31 - 1},
        r"conv_transpose2d output of size \[2, 4, \d+, \d+\] has more than 2\^48 elements",
    ),
    (SOFTMAX, {"out_channels": 0}, ""),
    (SOFTMAX, {"stride_w": 0}, ""),
    (SOFTMAX, {"padding_h": 6}, ""),
    (SOFTMAX, {"output_padding_h": 2}, ""),
    (SOFTMAX, {"kernel_h": HUGE}, rf"kernel must be at most 2147483647, .*=\[{HUGE}, 4\]"),
    (AVGPOOL, {"pool_kernel": 0}, ""),
    (AVGPOOL, {"pool_kernel": 5}, ""),
    (AVGPOOL, {"pool_kernel": HUGE}, rf"avg_pool: input .* smaller than a window of {HUGE}"),
    (AVGPOOL, {"depth": 0}, ""),
    (AVGPOOL, {"padding_d": 4}, ""),
    (AVGPOOL, {"output_padding_w": 2}, ""),
    (NORMS, {"groups": 0}, ""),
    (NORMS, {"out_channels": 0}, r"out_channels must be at least 1, but got out_channels=0"),
    (NORMS, {"num_groups": 0}, ""),
    (NORMS, {"num_groups": 3}, ""),
    (NORMS, {"num_groups": HUGE}, rf"num_groups={HUGE} does not divide the 8 channels"),
    (NORMS, {"height": 1, "width": 1, "kernel_h": 3, "kernel_w": 4}, ""),
    (NORMS, {"batch_size": 1, "height": 1, "width": 1, "kernel_h": 3, "kernel_w": 3}, ""),
    (
        NORMS,
        {"batch_size": 1, "height": 1, "width": 1, "kernel_h": 4, "kernel_w": 4, "num_groups": 8},
        "",
    ),
    (MAXIMA, {"stride_d": 0}, ""),
    (MAXIMA, {"padding_w": 9}, ""),
    (MAXIMA, {"padding_w": 8}, ""),
    (MAXIMA, {"depth": 2, "kernel_d": 5}, ""),
    (MAXIMA, {"kernel_d": HUGE}, r"kernel must be at most 2147483647"),
]


@built
@elements
@pytest.mark.parametrize(
    ("slug", "changes", "words"),
    BAD,
    ids=[f"{s} {' '.join(f'{k}={v}' for k, v in c.items())}" for s, c, _ in BAD],
)
def test_bad_sizes_are_refused(
    slug: str, changes: dict[str, int], words: str, dtype: str, case: Callable[..., Any]
) -> None:
    given = case(slug, f"small {dtype}")
    y = given.empty()
    arguments = given.arguments(y) | changes
    message = call(slug, dtype, arguments)
    assert y.isnan().all()
    if words:
        assert re.search(words, message)
        return
    with pytest.raises((RuntimeError, ValueError)) as refused:
        given.operator.solution(**arguments)
    assert message == str(refused.value)


@built
@problems
def test_null_pointers_and_shared_memory_are_refused(slug: str, case: Callable[..., Any]) -> None:
    given = case(slug, "small")
    y = given.empty()
    arguments = given.arguments(y)
    for p in document(slug).pointers:
        assert call(slug, "fp32", arguments | {p.name: None}) == f"{p.name} is a null pointer"
    for p in document(slug).inputs:
        for place in (y.data_ptr(), y.data_ptr() + y.nbytes - 4):
            message = call(slug, "fp32", arguments | {p.name: place})
            assert message.startswith(f"output shares memory with {p.name};")
        last = arguments[p.name].data_ptr() + arguments[p.name].nbytes - 4
        assert "output shares memory with " in call(slug, "fp32", arguments | {"output": last})
    assert y.isnan().all()


@built
def test_neighbours_in_memory_are_not_shared(case: Callable[..., Any]) -> None:
    given = case(PLAIN, "small")
    y = given.empty()
    both = torch.full((y.numel() + given.x.numel(),), torch.nan)
    both[: y.numel()].copy_(y.flatten())
    x, out = both[y.numel() :].copy_(given.x.flatten()), both[: y.numel()]
    assert call(PLAIN, "fp32", given.arguments(out) | {"input": x}) == ""
    assert not wrong(given, out.view_as(y))


def test_there_are_enough_bad_sizes() -> None:
    assert len(BAD) >= 25
    assert {slug for slug, _, _ in BAD} == set(OPERATORS)
