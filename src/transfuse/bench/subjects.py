"""What is measured: an operator's named cases, sizes along one axis, real layers, drawn chains."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from transfuse import draws
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.operators import OPERATORS, operator
from transfuse.problem import Problem
from transfuse.stages import conv_transpose

SETS = ("benchmark", "cpu", "small", "ragged", "sweep", "layers", "chains")
"""Sets of cases; the first four are declared by each operator, the last two are of no operator."""
CHAINS = "drawn-chains"
"""Chains drawn by seed, as if they were one operator."""
DRAWN = 60
PLAIN = re.compile(r"conv-transpose([123])d")
"""The plain convolution with bias, for layers and lines of any rank."""


@dataclass(frozen=True)
class Subject:
    """One thing to measure; ``axis`` and ``at`` place it in a sweep."""

    slug: str
    name: str
    chain: Chain
    case: Case
    axis: str = ""
    at: int = 0

    def on(self, arithmetic: str, device: str) -> "Subject":
        return replace(self, case=self.case.on(arithmetic, device))


def subjects(slugs: list[str], sets: list[str], lines: list[str], device: str) -> list[Subject]:
    """Everything the arguments ask for, in their order; ``lines`` go to every slug given."""
    unknown = [name for name in sets if name not in SETS]
    if unknown:
        raise ValueError(f"unknown set of cases {unknown[0]!r}; known: {', '.join(SETS)}")
    found: list[Subject] = []
    for slug in [slug for slug in slugs if slug != CHAINS] or ([] if slugs else OPERATORS):
        found += [_given(slug, line) for line in lines]
        found += [each for name in sets for each in _of_set(slug, name, device)]
    if "layers" in sets and not slugs:
        found += layers()
    if "chains" in sets and (not slugs or CHAINS in slugs):
        found += chains(draws.LARGE if device == "cpu" else draws.HUGE)
    if not found:
        raise ValueError(f"nothing to measure: {', '.join(slugs)} has no {', '.join(sets)}")
    return found


def _given(slug: str, line: str) -> Subject:
    plain = PLAIN.fullmatch(slug)
    if plain:
        case = Case.parse(line)
        if case.scalars or case.problem.rank != int(plain[1]):
            raise ValueError(f"{slug} takes a problem line of {plain[1]} axes, not {line!r}")
        return Subject(slug, "given", plain_chain(case.problem.rank, bias=True), case)
    op = operator(slug)
    case = op.case(line)
    name = line if line in op.cases else "given"
    return Subject(slug, name, op.bound(case), case)


def _of_set(slug: str, name: str, device: str) -> Iterator[Subject]:
    if PLAIN.fullmatch(slug):
        if name == "layers":
            yield from (each for each in layers() if each.slug == slug)
    elif name == "sweep":
        yield from sweep(slug, device)
    elif name in operator(slug).cases:
        yield _given(slug, name)


def sweep(slug: str, device: str) -> Iterator[Subject]:
    """How cost grows along batch, channels and space, up to the device's own size."""
    op = operator(slug)
    base = op.case("cpu" if device == "cpu" else "benchmark")
    problem = base.problem
    for share in (8, 4, 2, 1):
        steps: dict[str, Problem] = {}
        # A CPU's size has few samples, so its batch grows from there instead.
        batch = problem.batch * 8 // share if device == "cpu" else problem.batch // share
        steps["batch"] = replace(problem, batch=batch)
        steps["channels"] = replace(
            problem,
            in_channels=problem.in_channels // share,
            out_channels=problem.out_channels // share,
        )
        steps["spatial"] = replace(problem, spatial=tuple(n // share for n in problem.spatial))
        at = {"batch": batch, "channels": problem.out_channels // share}
        at["spatial"] = problem.spatial[-1] // share
        for axis, step in steps.items():
            case = Case(step, base.scalars)
            try:
                op.bound(case).shapes(step)
            except (RuntimeError, ValueError):
                continue  # too small for its pools or its groups
            yield Subject(slug, f"sweep {axis}", op.bound(case), case, axis, at[axis])


def plain_chain(rank: int, bias: bool) -> Chain:
    return Chain(conv_transpose(rank, bias="bias" if bias else None))


def layers() -> list[Subject]:
    """The transposed convolutions of published models, at their own sizes."""
    return [_layer(facts) for facts in _layer_facts()]


def chains(size: draws.Size) -> list[Subject]:
    """Chains of any stages, drawn by seed."""
    drawn = ((seed, draws.drawn(seed, size)) for seed in range(DRAWN))
    return [
        Subject(CHAINS, f"{seed}: {chain}", chain, Case(problem))
        for seed, (chain, problem) in drawn
    ]


@cache
def _layer_facts() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("real_layers.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _layer(facts: dict[str, Any]) -> Subject:
    options = ("spatial", "kernel", "stride", "padding", "dilation", "output_padding")
    geometry: dict[str, Any] = {option: tuple(facts[option]) for option in options}
    problem = Problem(
        batch=facts["batch"],
        in_channels=facts["in_channels"],
        out_channels=facts["out_channels"],
        groups=facts["groups"],
        **geometry,
    )
    name = f"{facts['model']} {facts['layer']}"
    chain = plain_chain(problem.rank, facts["bias"])
    return Subject(f"conv-transpose{problem.rank}d", name, chain, Case(problem))
