"""What is measured: an operator's cases, sizes along an axis, real layers, drawn ones, chains."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from transfuse import drawn_layers, draws
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.operators import OPERATORS, operator
from transfuse.problem import Problem
from transfuse.stages import conv_transpose

SETS = ("benchmark", "cpu", "small", "ragged", "sizes", "layers", "drawn-layers", "chains")
"""Sets of cases: each operator declares the first four, the last three are of no operator."""
LAYERS = ("layers", "drawn-layers")
"""The sets of plain convolutions."""
CHAINS = "drawn-chains"
"""Chains drawn by seed, as if they were one operator."""
DRAWN = 60
DRAWN_LAYERS = 300
PLAIN = re.compile(r"conv-transpose([123])d")
"""The plain convolution with bias, for layers and lines of any rank."""


@dataclass(frozen=True)
class Subject:
    """One thing to measure; ``axis`` and ``at``: what grows in a series of sizes, and to what."""

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
        raise ValueError(f"unknown set of cases {unknown[0]!r}; known: {', '.join(SETS)}, models")
    found: list[Subject] = []
    named = [_slug(name) for name in slugs if name != CHAINS]
    for slug in named or ([] if slugs else OPERATORS):
        found += [_given(slug, line) for line in lines]
        found += [each for name in sets for each in _of_set(slug, name, device)]
    for name in () if slugs else LAYERS:
        found += _layers(name, device) if name in sets else []
    if "chains" in sets and (not slugs or CHAINS in slugs):
        found += chains(draws.LARGE if device == "cpu" else draws.HUGE)
    if not found:
        raise ValueError(f"nothing to measure: {', '.join(slugs)} has no {', '.join(sets)}")
    return found


def _slug(name: str) -> str:
    """What its records are kept under: an operator may be called by its short name."""
    return name if PLAIN.fullmatch(name) else operator(name).slug


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
        if name in LAYERS:
            yield from (each for each in _layers(name, device) if each.slug == slug)
    elif name == "sizes":
        yield from sizes(slug, device)
    elif name in operator(slug).cases:
        given = _given(slug, name)
        yield from _both_layouts(given) if name == "benchmark" and device != "cpu" else [given]


def _both_layouts(subject: Subject) -> list[Subject]:
    """The same on contiguous tensors, and where torch has them on channels_last ones."""
    problem = subject.case.problem
    if problem.rank == 1:
        return [subject]
    last = Case(replace(problem, layout="channels_last"), subject.case.scalars)
    return [subject, replace(subject, name=f"{subject.name} channels_last", case=last)]


def sizes(slug: str, device: str) -> Iterator[Subject]:
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
            yield Subject(slug, "sizes", op.bound(case), case, axis, at[axis])


def plain_chain(rank: int, bias: bool) -> Chain:
    return Chain(conv_transpose(rank, bias="bias" if bias else None))


def layers() -> list[Subject]:
    """The transposed convolutions of published models, at their own sizes."""
    return [_layer(facts) for facts in _layer_facts()]


def _layers(name: str, device: str) -> list[Subject]:
    bounds = drawn_layers.SMALL if device == "cpu" else drawn_layers.LARGE
    return layers() if name == "layers" else drawn(bounds)


def drawn(bounds: drawn_layers.Bounds) -> list[Subject]:
    """Layers drawn by seed, each on contiguous and on channels_last tensors."""
    return [each for seed in range(DRAWN_LAYERS) for each in _both_layouts(_drawn(seed, bounds))]


def _drawn(seed: int, bounds: drawn_layers.Bounds) -> Subject:
    problem, bias = drawn_layers.drawn_layer(seed, bounds)
    chain = plain_chain(problem.rank, bias)
    slug = f"conv-transpose{problem.rank}d"
    return Subject(slug, f"drawn {seed}: {chain}", chain, Case(problem))


def chains(size: draws.Size) -> list[Subject]:
    """Chains of any stages, drawn by seed."""
    drawn = ((seed, draws.drawn(seed, size)) for seed in range(DRAWN))
    return [
        Subject(CHAINS, f"drawn {seed}: {chain}", chain, Case(problem))
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
