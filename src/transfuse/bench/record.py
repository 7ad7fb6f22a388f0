"""The file of results: JSON lines, one for the run and one for each variant of each case.

Rows are appended and flushed as each case is done, so an interrupted run keeps what it measured.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
OURS = "transfuse"
BASELINE = "torch eager"
MODEL = "model"
"""The slug of whole models, as if they were one operator; which one is the row's name."""
FUSED = frozenset({"transfuse compiled", "compile backend"})
"""Other ways to run a model fused: timed beside the others, but no peers."""
POOLED = frozenset({"JAX/XLA", "onnxruntime", "OpenVINO"})
"""Peers that keep memory of their own from call to call: what a call takes cannot be seen."""


@dataclass(frozen=True)
class Spread:
    """Median with the 20th and 80th percentile."""

    median: float
    p20: float
    p80: float


@dataclass(frozen=True)
class Run:
    """What all rows of one run have in common."""

    id: str
    command: str
    started: str
    device: str
    seed: int
    commit: str | None
    environment: dict[str, Any]
    # bytes/s of a copy by its size in bytes; flop/s of a matrix product by precision class;
    # exponentials/s by element type
    copy: list[tuple[int, float]]
    matmul: dict[str, float]
    special: dict[str, float] = field(default_factory=dict)
    kind: str = "run"
    version: int = VERSION


@dataclass(frozen=True)
class Row:
    """One variant of one case: its samples in seconds, or the reason why there are none.

    ``status``: ok; wrong (the gate refused its result); missing (not installed, does not serve
    this); failed (it raised). ``ratio`` is this variant's time over ours, round by round: above 1
    transfuse is faster. ``floor`` is the least time that the run's own ceilings allow: pass by
    pass, special functions and copies that cannot be avoided among them; ``floor_of_definition``,
    for the products of the definition and every tensor moved once. ``impossible``: less than that,
    even with the fewest products that are known. ``training``: a step was timed, the call and the
    gradients of its tensors.
    """

    run: str
    slug: str
    name: str
    case: str
    precision: str
    device: str
    variant: str
    status: str
    reason: str = ""
    backend: str = ""
    axis: str = ""
    at: int = 0
    error: float | None = None
    samples: list[float] = field(default_factory=list)
    host_samples: list[float] = field(default_factory=list)
    time: Spread | None = None
    ratio: Spread | None = None
    first_call: float | None = None
    peak_bytes: int | None = None
    flops: int = 0
    bytes: int = 0
    floor: float | None = None
    floor_of_definition: float | None = None
    impossible: bool = False
    training: bool = False
    kind: str = "row"

    @property
    def key(self) -> tuple[str, str, str]:
        """The group of rows measured together."""
        return self.slug, self.case, self.setting

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What is measured, in whichever run."""
        return (*self.key, self.variant)

    @property
    def setting(self) -> str:
        """The precision class, the layout where it is not contiguous, and whether it trains."""
        return setting(self.case, self.precision, self.training)

    @property
    def model(self) -> str:
        """The name of the whole model that was measured, if it was one."""
        return self.name if self.slug == MODEL else ""

    @property
    def memory(self) -> int | None:
        """The most bytes held during a call, where they can be measured: a result takes some."""
        return None if self.variant in POOLED else self.peak_bytes or None

    @property
    def of_floor(self) -> float | None:
        """The share of the machine's limit that was reached, 1 at best."""
        return self.floor / self.time.median if self.floor and self.time else None

    @property
    def of_definition(self) -> float | None:
        """The same of the floor that the definition alone has."""
        known = self.floor_of_definition
        return known / self.time.median if known and self.time else None


def setting(case: str, precision: str, training: bool) -> str:
    """What is said of a case beside its operator."""
    layout = [word for word in case.split() if word == "channels_last"]
    return ", ".join([precision, *layout, *(["training"] if training else [])])


class ResultError(ValueError):
    """A result file is malformed; the message starts with ``file:line:``."""


def _floors(record: dict[str, Any]) -> dict[str, Any]:
    """A row with both floors: before there were two, the definition's was called the floor."""
    if "floor_of_definition" in record:
        return record
    return {**record, "floor": None, "floor_of_definition": record.get("floor")}


def append(path: Path, records: Iterable[Run | Row]) -> None:
    """Add lines and see them on disk."""
    lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)
        file.flush()


def read(path: Path) -> tuple[list[Run], list[Row]]:
    """Every run and row of a file.

    Of a run that is written twice the later one counts; a last line that a kill cut off does not.
    """
    runs: dict[str, Run] = {}
    rows: list[Row] = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
            kind = record["kind"]
            if kind == "run":
                if record["version"] != VERSION:
                    raise ValueError(f"version {record['version']}, this reads {VERSION}")
                run = Run(**{**record, "copy": [tuple(c) for c in record["copy"]]})
                runs[run.id] = run
            elif kind == "row":
                spreads = {k: record[k] and Spread(**record[k]) for k in ("time", "ratio")}
                rows.append(Row(**{**_floors(record), **spreads}))
            else:
                raise ValueError(f"unknown kind {kind!r}")
        except (ValueError, KeyError, TypeError) as error:
            said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ResultError(
                f"{path}:{number}: not a line of results, as transfuse bench writes them: {said}"
            ) from error
    for row in rows:
        if row.run not in runs:
            raise ResultError(f"{path}:1: a row belongs to run {row.run!r}, which is not here")
    return list(runs.values()), rows
