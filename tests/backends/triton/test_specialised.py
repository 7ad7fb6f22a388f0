"""Arguments as Triton would see them: the very types and values, told without asking it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

import transfuse.backends.triton as package
from transfuse.backends.triton.ahead import Wanted, builds
from transfuse.backends.triton.arguments import At, Boxes, Pointer, Scalar, filled
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.specialised import pair, specialised
from transfuse.backends.triton.sweeps import prepare
from transfuse.backends.triton.versions import target
from transfuse.maths import exp
from transfuse.maths.expr import X
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import Stage, batch_norm, conv_transpose, group_norm, max_pool, tanh
from transfuse.sweeps import Each, Fold, Slide, View

BACKEND = make_backend(target(90))


def declared() -> Iterator[Kernel]:
    """Every kernel that some launch has."""
    from importlib import import_module

    folder = Path(package.__file__).parent
    for file in sorted(folder.rglob("*_launch.py")):
        name = ".".join(file.relative_to(folder).with_suffix("").parts)
        module = import_module(f"{package.__name__}.{name}")
        yield from (each for each in vars(module).values() if isinstance(each, Kernel))


KERNELS = sorted(set(declared()), key=lambda each: each.name)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: each.name)
def test_kernels_are_as_declared(kernel: Kernel) -> None:
    parameters = kernel.function.params
    static = [each.is_constexpr for each in parameters]
    assert static == [False] * (len(static) - kernel.static) + [True] * kernel.static
    assert not any(each.annotation_type for each in parameters[: -kernel.static])
    assert any(each.do_not_specialize for each in parameters) == kernel.at_run_time


def test_all_kernels_are_found() -> None:
    assert len(KERNELS) == 16


def by_triton(build: Build) -> list[Any]:
    """The same by Triton's own means."""
    kernel = build.kernel.function
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    _, found, _ = bind(*filled(build.arguments, build.memory))
    return list(found)


def plain(value: Any) -> Any:
    """A description of a box without how it lies in shared memory; types by name."""
    if isinstance(value, Scalar):
        return value.type
    if isinstance(value, str) and value.startswith("tensordesc"):
        return value.partition("]")[0]
    return value


def same(build: Build) -> None:
    ours = [tuple(map(plain, each)) for each in build.seen]
    theirs = [tuple(map(plain, each)) for each in by_triton(build)]
    names = build.kernel.function.arg_names
    for name, mine, his in zip(names, ours, theirs, strict=True):
        assert mine == his, (build.kernel.name, name)


CHAINS: dict[str, tuple[str, tuple[Stage, ...]]] = {
    "k2 s2": ("n2 ci64 co64 i16x16 k2 s2 fp16", (conv_transpose(2, "bias"),)),
    "k4 s2 tf32": ("n2 ci64 co64 i16x16 k4 s2 p1 fp32 tf32", (conv_transpose(2, "bias"),)),
    "depthwise": ("n2 ci16 co16 i16x16 k3 s2 g16 bf16", (conv_transpose(2),)),
    "fp64": ("n1 ci3 co5 i9 k3 fp64", (conv_transpose(1, "bias"), tanh())),
    "statistics": (
        "n4 ci16 co32 i16x16 k3 fp16",
        (conv_transpose(2), batch_norm(training=True), max_pool(2), group_norm(4)),
    ),
}
CALLS = {
    name: Wanted(stages, Problem.parse(f"{line} cuda:sm90"))
    for name, (line, stages) in CHAINS.items()
} | {
    f"{slug} {arithmetic}": Wanted(OPERATORS[slug].bound(case).stages, case.problem)
    for slug in OPERATORS
    for arithmetic in ("fp16", "tf32")
    if (case := OPERATORS[slug].case("benchmark").on(arithmetic, "cuda:sm90"))
}


@pytest.mark.parametrize("name", CALLS)
def test_launches_of_chains(name: str) -> None:
    wanted = CALLS[name]
    for layout in ("contiguous", "channels_last"):
        problem = replace(wanted.problem, layout=layout)
        found = builds(replace(wanted, problem=problem))
        assert found
        for build in found:
            same(build)


def test_launches_of_sweeps() -> None:
    x = View(0, torch.float16, (4, 6, 40), (240, 40, 1))
    each = Each(View(1, torch.float32, (4, 6, 40), (240, 40, 1)), exp(X), (("x", x),))
    fold = Fold((View(1, torch.float32, (4, 6), (6, 1)),), "mean", (("x", x),))
    pooled = View(1, torch.float32, (4, 6, 20), (120, 20, 1))
    slide = Slide(pooled, "max", (("x", x),), (2,), (2,), (0,), (1,))
    memory = [torch.empty(1, dtype=kind, device="meta") for kind in (torch.float16, torch.float32)]
    for sweep in (each, fold, slide):
        made = prepare(sweep, torch.device("cpu"))
        scratch = [torch.empty(1, dtype=kind, device="meta") for _, _, kind in made.scratch]
        for build in made.build([*memory, *scratch], 90):
            same(build)


NUMBERS = (0, 1, 2, 16, -16, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, 2**63, True, 1.5)


@pytest.mark.parametrize("value", [*NUMBERS, None, (), (1, 16, (2, 1.0)), NUMBERS], ids=repr)
@pytest.mark.parametrize("at_run_time", [False, True])
def test_single_values(value: Any, at_run_time: bool) -> None:
    from triton._C.libtriton import native_specialize_impl

    found = native_specialize_impl(type(BACKEND), value, False, not at_run_time, True)
    assert pair(value, [], at_run_time) == found


@pytest.mark.parametrize("address", [0, 8, 16, 40])
def test_addresses_are_told_apart_by_16_bytes(address: int) -> None:
    kernel = Kernel("sweeps.each_kernel", "each", static=0)
    memory = [Pointer(address, torch.float16)]
    assert specialised(kernel, [At(0)], memory) == (("*fp16", "" if address % 16 else "D"),)


def test_boxes_are_told_apart_by_type_and_box() -> None:
    kernel = Kernel("sweeps.each_kernel", "each", static=0)
    boxes = Boxes(0, (64, 64), (8, 16))
    (found,) = specialised(kernel, [boxes], [Pointer(0, torch.bfloat16)])
    assert found == ("tensordesc<bf16[8, 16]>", None)


def test_what_no_kernel_takes_is_refused() -> None:
    with pytest.raises(TypeError, match="'x' of str among the arguments of a kernel"):
        pair("x", [])
