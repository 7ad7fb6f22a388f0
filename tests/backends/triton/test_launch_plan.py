"""Programs as launches: how many there are, and which kernels serve."""

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import installed, lower
from transfuse.backends.triton.draft import Draft, Lying
from transfuse.backends.triton.engines import ordered
from transfuse.backends.triton.engines.portable.tiling import heuristic
from transfuse.backends.triton.gpu import Gpu
from transfuse.backends.triton.launch_plan import LaunchPlan
from transfuse.backends.triton.store import shelves
from transfuse.backends.triton.strides import five, three
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, group_norm, max_pool

PLAIN, SOFTMAX, POOL, NORM, MAX = OPERATORS


@pytest.fixture(autouse=True)
def _any_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here, so every Triton will do."""
    monkeypatch.setattr(installed, "any_row", lambda: True)


@pytest.fixture
def strips_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other engine is asked."""
    strips = [each for each in ordered.ENGINES if each.name == "hopper_strip"]
    monkeypatch.setattr(ordered, "ENGINES", strips)


def planned(chain: Chain, problem: Problem, capability: int = 90, real: bool = False) -> LaunchPlan:
    problem = replace(problem, device=f"cuda:sm{capability}")
    plan = fused(chain, problem)
    shapes = problem.input.dims, problem.weight, chain.shapes(problem)[-1].dims
    strides = tuple(five(torch.empty(shape, device="meta").stride()) for shape in shapes)
    draft = Draft(
        lower.lowered(chain, plan),
        plan.chain.core(problem),
        Lying(
            three(problem.spatial, 1),
            strides,  # type: ignore[arg-type]
            [name for name, _ in chain.dims(problem)],
        ),
        torch.device("cpu"),
        Gpu(capability, 132, real),
    )
    return LaunchPlan(draft, lambda _, shape: heuristic(shape, capability))


def kernels(found: LaunchPlan) -> str:
    return " ".join(launch.kernel.name for launch in found.launches)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("n2 ci8 co8 i9x9 k2 s2", "pack convolve"),  # every tap finds an input: none careful
        ("n2 ci8 co8 i9x9 k1", "pack convolve"),
        ("n2 ci8 co8 i9x9 k3 s2", "pack convolve convolve_carefully"),
        ("n2 ci8 co8 i9x9 k2 s2 op1", "pack convolve convolve_carefully"),
        ("n2 ci8 co8 i9x9 k3 s2 g8", "pack convolve"),  # product by product in any case
    ],
)
def test_careful_launch_where_a_tap_leaves_the_input(line: str, names: str) -> None:
    problem = Problem.parse(line)
    assert kernels(planned(Chain(conv_transpose(2)), problem)) == names


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("slug", "names"),
    [
        (PLAIN, "pack convolve convolve_carefully"),
        (SOFTMAX, "pack convolve convolve_carefully"),
        (POOL, "pack convolve convolve_carefully merge convolve convolve_carefully"),
        (NORM, "pack convolve convolve_carefully merge finish"),
    ],
)
def test_launches_of_the_operators(slug: str, names: str, capability: int) -> None:
    """Input and weights are copied once, however many passes read them."""
    case = OPERATORS[slug].case("benchmark").on("fp16", "cuda")
    found = kernels(planned(OPERATORS[slug].bound(case), case.problem, capability))
    assert found.replace(" finish", "").startswith(names.replace(" finish", ""))


@pytest.mark.parametrize(
    ("line", "careful"),
    [
        ("n2 ci16 co32 i9x9 k2 s2 fp32 tf32 cuda", False),
        ("n2 ci64 co64 i9x9 k2 s2 fp16 cuda", False),
        ("n2 ci16 co32 i9x9 k2 s2 fp16 cuda", True),  # blocks of channels read on
        ("n2 ci64 co64 i9x9 k3 s1 fp16 cuda", True),
    ],
)
@pytest.mark.usefixtures("strips_alone")
def test_a_careful_launch_follows_hopper_where_weights_meet_zeros(line: str, careful: bool) -> None:
    problem = Problem.parse(line)
    found = planned(Chain(conv_transpose(2)), problem, real=True)
    names = "pack convolve_strip" + " convolve_carefully" * careful
    assert kernels(found) == names


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16", "bf16"])
def test_hopper_has_loops_of_its_own(arithmetic: str) -> None:
    case = OPERATORS[PLAIN].case("benchmark").on(arithmetic, "cuda")
    chain = OPERATORS[PLAIN].bound(case)
    assert "convolve_strip" in kernels(planned(chain, case.problem, real=True))
    for capability in (80, 100):
        found = planned(chain, case.problem, capability, real=True)
        assert kernels(found) == "pack convolve convolve_carefully"


def test_where_gluon_has_no_such_views_portable_kernels_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop of windows is not concerned: its boxes lie side by side."""
    monkeypatch.setattr(installed, "any_row", lambda: False)
    for slug, names, engine in (
        (PLAIN, "pack convolve convolve_carefully", "portable"),
        (SOFTMAX, "pack convolve convolve_carefully", "portable"),
        (MAX, "pack convolve_window convolve_carefully finish", "hopper_window"),
    ):
        case = OPERATORS[slug].case("benchmark").on("fp16", "cuda")
        found = planned(OPERATORS[slug].bound(case), case.problem, real=True)
        assert kernels(found) == names
        assert [each.engine for each in found.served] == [engine]


def test_where_it_is_stored_the_loop_of_strips_serves_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another Triton has compiled it: it is asked for by the key that a call will have."""
    case = OPERATORS[PLAIN].case("benchmark").on("fp16", "cuda")
    chain, problem = OPERATORS[PLAIN].bound(case), case.problem
    made = planned(chain, problem, real=True)
    kinds = [torch.float16] * 3 + [dtype for _, _, dtype in made.scratch]
    builds = made.build([torch.empty(1, dtype=kind, device="meta") for kind in kinds], 90)
    (strip,) = (each.key for each in builds if each.kernel.name == "convolve_strip")
    asked: list[str] = []

    def find(key: str) -> Any:
        asked.append(key)
        return "an entry" if key == strip else None

    monkeypatch.setattr(installed, "any_row", lambda: False)
    monkeypatch.setattr(shelves, "find", find)
    again = planned(chain, problem, real=True)
    assert kernels(again) == kernels(made)
    assert again.scratch == made.scratch, "a trial has left something behind"
    assert asked == [strip]


@pytest.mark.parametrize("line", ["n4 ci16 co64 i64x64 k2 s2", "n4 ci40 co64 i64x64 k1x2 s1x2"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.usefixtures("strips_alone")
def test_weights_of_the_next_slot_are_not_met(line: str, dtype: str) -> None:
    """A block of channels that reads on into the next tap multiplies it by zero: not if it is NaN.

    So blocks must divide what a slot keeps, or a careful launch must follow.
    """
    problem = Problem.parse(f"{line} {dtype}")
    found = planned(Chain(conv_transpose(2)), problem, real=True)
    for launch in found.launches:
        if launch.kernel.name == "convolve_strip":
            given = dict(zip(launch.kernel.function.arg_names, launch.arguments, strict=True))
            kept, depth = given["kept"], given["C"].depth
            careful = kernels(found).endswith(" convolve_carefully")
            assert kept % depth == 0 or careful, (kept, depth)


def test_scratch_does_not_overlap() -> None:
    chain = Chain(conv_transpose(2), batch_norm(training=True), max_pool(2), group_norm(2))
    found = planned(chain, Problem.parse("n3 ci5 co6 i9x8 k3 p1"))
    ends = 0
    for at, size, dtype in found.scratch:
        assert at >= ends
        assert at % 16 == 0
        ends = at + size * dtype.itemsize
    assert ends <= found.bytes
