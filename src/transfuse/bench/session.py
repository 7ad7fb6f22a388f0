"""A run of the bench: its header, its cases one after another, each kept as soon as it is done."""

import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from secrets import token_hex

from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import clock
from transfuse.bench.measure import Ours, measure
from transfuse.bench.peers import Peer, peers
from transfuse.bench.precision import PRECISIONS, Precision, precisions
from transfuse.bench.record import OURS, Row, Run, append, read, setting
from transfuse.bench.subjects import Subject
from transfuse.bench.ways import Way
from transfuse.bench.whole import Whole
from transfuse.machine import environment
from transfuse.operators import short


class Session:
    """Everything one run needs: what to measure, against whom, and where results go."""

    def __init__(
        self,
        subjects: Sequence[Subject | Whole],
        classes: Sequence[Precision],
        variants: Mapping[str, Peer] | Mapping[str, Way],
        device: str,
        path: Path,
        command: Sequence[str],
        seed: int = 0,
        rounds: int = 20,
        seconds: float = 10.0,
        resume: bool = False,
        training: bool = False,
        tell: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self.path, self.variants, self.tell = path, variants, tell
        self.limits = (rounds, seconds, training)
        done = _done(path, variants) if resume else set()
        if path.exists() and path.stat().st_size and not resume:
            raise ValueError(f"{path} has results already; --resume adds to it")
        wanted = [(subject, precision) for subject in subjects for precision in classes]
        self.work = [
            (subject, precision)
            for subject, precision in wanted
            if _key(subject.on(precision.arithmetic, device), precision, training) not in done
        ]
        self.skipped = len(wanted) - len(self.work)
        self.ceilings = Ceilings(device, clock(device))
        self.run = Run(
            id=f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{token_hex(3)}",
            command=shlex.join(command),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            device=device,
            seed=seed,
            commit=_commit(),
            environment=environment(),
            copy=self.ceilings.copy,
            matmul=self.ceilings.matmul,
            special=dict(self.ceilings.special),
        )

    def __iter__(self) -> Iterator[list[Row]]:
        """The rows of each case, when they are measured and on disk."""
        append(self.path, [self.run])
        for subject, precision in self.work:
            label = f"{subject.axis} {subject.at}" if subject.axis else subject.name
            what = f"{short(subject.slug)} {label} {precision.name}"
            rows = measure(
                self.run,
                subject,
                precision,
                self.variants,
                self.ceilings,
                *self.limits,
                partial(self._tell, what),
            )
            append(self.path, rows)
            yield rows
        # The same run again, with the ceilings as they were seen by its end.
        final = replace(
            self.run,
            copy=self.ceilings.copy,
            matmul=self.ceilings.matmul,
            special=dict(self.ceilings.special),
        )
        append(self.path, [final])

    def _tell(self, what: str, doing: str) -> None:
        self.tell(f"{what}: {doing}")


def variants(names: Sequence[str] | None) -> dict[str, Peer]:
    """Ours, and the peers by these names (all of them by default)."""
    known = peers()
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; known: {', '.join(known)}")
    chosen = known if names is None else {name: known[name] for name in names}
    return {OURS: Ours(), **chosen}


def classes(names: Sequence[str] | None, device: str) -> tuple[Precision, ...]:
    """The precision classes by these names; fp32, or tf32 on a GPU, by default."""
    known = {each.name: each for each in precisions(device)}
    wanted = names or (["fp32"] if device == "cpu" else ["tf32"])
    for name in wanted:
        if name not in known:
            here = name in PRECISIONS
            what = f"no precision class {name!r} here" if here else f"unknown precision {name!r}"
            raise ValueError(f"{what}; known: {', '.join(known)}")
    return tuple(known[name] for name in wanted)


def _key(subject: Subject | Whole, precision: Precision, training: bool) -> tuple[str, str, str]:
    """That of its rows."""
    case = str(subject.case)
    return subject.slug, case, setting(case, precision.name, training)


def _done(path: Path, variants: Iterable[str]) -> set[tuple[str, str, str]]:
    """The cases of which a file has every variant asked for."""
    have: dict[tuple[str, str, str], set[str]] = {}
    for row in read(path)[1]:
        have.setdefault(row.key, set()).add(row.variant)
    return {key for key, names in have.items() if names >= set(variants)}


def _commit() -> str | None:
    """The commit of the package's own checkout, marked where it has changes."""
    here = ["git", "-C", str(Path(__file__).parent)]
    try:
        described = subprocess.run(
            [*here, "describe", "--always", "--dirty", "--abbrev=12", "--match="],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
