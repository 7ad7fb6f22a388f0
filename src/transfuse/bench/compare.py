"""Two files of results side by side, with a verdict only where the spread allows one.

On a GPU times are compared. On a CPU a time counts only inside its own run, so what is compared
is each variant's time as a share of torch eager's in the same rounds.
"""

from dataclasses import dataclass
from pathlib import Path

from transfuse.bench.record import BASELINE, Row, Spread, read
from transfuse.bench.statistics import ratios, verdict


@dataclass(frozen=True)
class Change:
    """One variant of one case in both files; ``change`` is new over old, below 1 is faster."""

    slug: str
    case: str
    precision: str
    variant: str
    unit: str
    old: Spread | None
    new: Spread | None
    change: float | None
    verdict: str


def compare(old: Path, new: Path) -> list[Change]:
    """Every row that has a time in either file, in the order of the new one."""
    before, after = _times(read(old)[1]), _times(read(new)[1])
    return [
        _change(key, before.get(key), after.get(key))
        for key in [*after, *(key for key in before if key not in after)]
    ]


_Key = tuple[str, str, str, str]


def _times(rows: list[Row]) -> dict[_Key, tuple[str, Spread]]:
    baselines = {(r.run, *r.key): r for r in rows if r.variant == BASELINE and r.time}
    found: dict[_Key, tuple[str, Spread]] = {}
    for row in rows:
        if row.time is None:
            continue
        if row.device != "cpu":
            found[row.identity] = "s", row.time
        elif (base := baselines.get((row.run, *row.key))) and row.variant != BASELINE:
            found[row.identity] = f"of {BASELINE}", ratios(row.samples, base.samples)
    return found


def _change(key: _Key, old: tuple[str, Spread] | None, new: tuple[str, Spread] | None) -> Change:
    if old is None or new is None:
        unit, _ = old or new or ("", None)
        missing = "only in the new file" if old is None else "only in the old file"
        return Change(*key, unit, old and old[1], new and new[1], None, missing)
    change = new[1].median / old[1].median
    return Change(*key, new[0], old[1], new[1], change, verdict(old[1], new[1]))
