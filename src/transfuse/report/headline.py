"""What a page says first: how many times as long each peer takes, and each real model."""

from dataclasses import dataclass
from math import exp, log

from transfuse.bench.record import FUSED, OURS, Row, Run
from transfuse.bench.statistics import outcome
from transfuse.report.looks import distinct

COUNTED = ("faster", "slower", "no difference")
OUTCOMES = (*COUNTED, "not compared")


@dataclass(frozen=True)
class Against:
    """One peer: the geometric mean of its ratios, how many there are, and how they came out."""

    name: str
    mean: float | None
    outcomes: dict[str, int]

    @property
    def cases(self) -> int:
        return sum(self.outcomes[each] for each in COUNTED)


@dataclass(frozen=True)
class Headline:
    """What was measured on one machine, calls apart from steps of training."""

    where: str
    what: str
    against: tuple[Against, ...]


@dataclass(frozen=True)
class Models:
    """Whole models on one machine: by name, the ratio of each peer, none where it has no time.

    ``slower``: models and peers beside which transfuse is so, by more than the noise.
    """

    where: str
    peers: tuple[str, ...]
    ratios: dict[str, tuple[float | None, ...]]
    means: tuple[float | None, ...]
    slower: frozenset[tuple[str, str]]


def judged(rows: list[Row]) -> list[str]:
    """How the row of each peer came out; nothing for ours."""

    def group(row: Row) -> tuple[object, ...]:
        return row.run, row.device, *row.key, row.name, row.axis, row.at

    ours = {group(row): row for row in rows if row.variant == OURS}
    return [_judged(row, ours.get(group(row))) for row in rows]


def _judged(row: Row, ours: Row | None) -> str:
    if row.variant == OURS or row.variant in FUSED:
        return ""
    if row.ratio is None or row.time is None or ours is None or ours.time is None:
        return "not compared"
    if row.impossible or ours.impossible:
        return "not compared"
    return outcome(row.time, ours.time, row.ratio)


def machine(run: Run) -> str:
    """The GPU by its name, or how many threads of which CPU."""
    found = run.environment
    if run.device.startswith("cuda"):
        return ", ".join(distinct(str(gpu["name"]) for gpu in found.get("gpus") or [])) or "GPU"
    threads = found.get("threads")
    what = "CPU" if threads is None else f"CPU, {threads} thread{'s' if threads != 1 else ''}"
    return f"{what} ({found['cpu']})" if found.get("cpu") else what


def mean(ratios: list[float]) -> float | None:
    """Geometric: twice as fast here and half as fast there is no difference."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def headlines(runs: list[Run], rows: list[Row], outcomes: list[str]) -> list[Headline]:
    """Of calls of operators, layers and chains; the points of a series are one case at many sizes,
    and are left out."""
    wheres = {run.id: machine(run) for run in runs}
    pairs = [pair for pair in zip(rows, outcomes, strict=True) if not pair[0].axis]
    found = []
    for where in distinct(wheres[row.run] for row, _ in pairs):
        for training in (False, True):
            of_place = [
                (row, how)
                for row, how in pairs
                if wheres[row.run] == where and row.training == training and not row.model
            ]
            peers = distinct(row.variant for row, _ in of_place if row.variant != OURS)
            if peers:
                what = "steps of training" if training else "calls"
                found.append(
                    Headline(where, what, tuple(_against(peer, of_place) for peer in peers))
                )
    return found


def _against(peer: str, pairs: list[tuple[Row, str]]) -> Against:
    hows = [how for row, how in pairs if row.variant == peer]
    ratios = [
        row.ratio.median
        for row, how in pairs
        if row.variant == peer and how in COUNTED and row.ratio
    ]
    return Against(peer, mean(ratios), {each: hows.count(each) for each in OUTCOMES})


def models(runs: list[Run], rows: list[Row], outcomes: list[str]) -> list[Models]:
    """Every real model there are results of, by machine, precision and whether it trains."""
    wheres = {run.id: machine(run) for run in runs}

    def place(row: Row) -> str:
        return f"{wheres[row.run]}, {row.setting}"

    pairs = [(row, how) for row, how in zip(rows, outcomes, strict=True) if row.model]
    found = []
    for where in distinct(place(row) for row, _ in pairs):
        here = [(row, how) for row, how in pairs if place(row) == where]
        peers = distinct(row.variant for row, _ in here if row.variant != OURS)
        names = distinct(row.model for row, _ in here)
        lookup = {
            (row.model, row.variant): row.ratio.median
            for row, how in here
            if row.ratio and how != "not compared"
        }
        ratios = {name: tuple(lookup.get((name, peer)) for peer in peers) for name in names}
        means = tuple(
            mean([r for r in column if r is not None])
            for column in zip(*ratios.values(), strict=True)
        )
        slower = frozenset((row.model, row.variant) for row, how in here if how == "slower")
        found.append(Models(where, tuple(peers), ratios, means, slower))
    return found
