"""Files of measured tiles: the user's first, then those shipped.

A file is one JSON object, an entry on each line; ``transfuse tune`` writes the user's. Writers take
turns under a lock, and what they write appears at once or not at all: a reader, at any time, and
after any crash, finds a whole file.
"""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from time import monotonic
from typing import Any

from transfuse import settings
from transfuse.backends.triton.engines.portable import tiling

SCHEMA = 1

PORTABLE = "portable"
"""The engine whose configurations are ``tiling.Tiling``."""

SHIPPED = Path(__file__).with_name("tuned")
"""The folder of the files that come with the package."""

FRESH = 1.0
"""Seconds for which files are taken not to have changed."""


@dataclass(frozen=True)
class Key:
    """What an entry holds for; ``shape`` is a problem line with its sizes rounded."""

    gpu: str
    engine: str
    chain: str
    shape: str
    arithmetic: str


@dataclass(frozen=True)
class Measured:
    """The best configuration measured, and the milliseconds of a call of ``problem`` with it.

    A call has tiles for each of its segments: what was measured for one holds the others' in it.
    """

    key: Key
    config: Mapping[str, Any]
    ms: float
    problem: str


class TunedFileError(ValueError):
    """A file of tuned tiles cannot be used; the message names it."""


def decoded(values: Mapping[str, Any]) -> tiling.Tiling:
    """A ``Tiling`` from JSON; raises where a field is missing, unknown or of another type."""
    names = {each.name for each in fields(tiling.Tiling)}
    if not names - {"split"} <= values.keys() <= names:
        raise ValueError(f"a configuration has {', '.join(sorted(names))}, not {dict(values)}")
    rest = {name: value for name, value in values.items() if name not in ("form", "box")}
    form, box = values["form"], values["box"]
    whole = isinstance(box, list) and all(type(n) is int for n in (*box, *rest.values()))
    if not (isinstance(form, str) and whole and len(box) == 4):
        raise ValueError(f"not a configuration: {dict(values)}")
    return tiling.Tiling(form, (box[0], box[1], box[2], box[3]), **rest)


def encoded(config: tiling.Tiling) -> dict[str, Any]:
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    return values | {"box": list(config.box)}


def files() -> list[dict[str, Any]]:
    """The files there are, the user's first: how many entries each has, or why it is left out."""
    found: list[dict[str, Any]] = []
    for path in _paths():
        if _stamp(path) is not None:
            try:
                found.append({"file": _shown(path), "entries": len(read(path))})
            except TunedFileError as error:
                found.append({"file": _shown(path), "fault": str(error)})
    return found


def _shown(path: Path) -> str:
    """A shipped file by its place in the package: results are not to tell where that lies."""
    package = Path(__file__).parents[3]
    return str(path.relative_to(package) if path.is_relative_to(package) else path)


Entries = Mapping[Key, Measured]

Stamp = tuple[int, int, int] | None


@dataclass
class _Files:
    """What was read last: the files looked for, their stamps and entries."""

    looked: float = -FRESH
    generation: int = 0
    stamps: dict[Path, Stamp] | None = None
    entries: tuple[tuple[Path, Entries], ...] = ()


_files = _Files()


def generation() -> int:
    """A number that changes with the files in force; cheap, for each call."""
    if monotonic() - _files.looked >= FRESH:
        refresh()
    return _files.generation


def in_force() -> tuple[tuple[Path, Entries], ...]:
    """The files that are there, the user's first, with their entries."""
    generation()
    return _files.entries


def refresh() -> None:
    """Look at the files now; read them again if any has changed."""
    stamps = {path: _stamp(path) for path in _paths()}
    _files.looked = monotonic()
    if stamps == _files.stamps:
        return
    kept, faults = [], []
    for path, stamp in stamps.items():
        if stamp is not None:
            try:
                kept.append((path, read(path)))
            except TunedFileError as error:
                faults.append(str(error))
    # Files are in force before anybody is warned: where warnings are errors, the first one raises.
    _files.stamps, _files.entries = stamps, tuple(kept)
    _files.generation += 1
    for fault in faults:
        warnings.warn(f"{fault}; it is left out", RuntimeWarning, stacklevel=2)


def _paths() -> list[Path]:
    user = settings.tuned()
    return [*([user] if user else []), *sorted(SHIPPED.glob("*.json"))]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read(path: Path) -> dict[Key, Measured]:
    """The entries of a file, none where there is no file; raises ``TunedFileError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise TunedFileError(f"{path}: cannot be read: {error}") from None
    try:
        held = json.loads(text)
        schema = held["schema"]
        if schema != SCHEMA:
            newer = f"of schema {schema!r}, and this transfuse reads {SCHEMA}"
            raise TunedFileError(f"{path}: a file {newer}")
        entries = [_entry(each) for each in held["entries"]]
    except TunedFileError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TunedFileError(f"{path}: not a file of tuned tiles: {why}") from None
    return {each.key: each for each in entries}


def _entry(values: Mapping[str, Any]) -> Measured:
    names = [each.name for each in fields(Key)]
    found = Key(**{name: values[name] for name in names})
    config, ms, problem = values["config"], values["ms"], values["problem"]
    texts = (*(getattr(found, name) for name in names), problem)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{', '.join(names)} and problem are texts, not {values}")
    if not isinstance(config, dict) or type(ms) not in (int, float) or not 0 <= ms < float("inf"):
        raise TypeError(f"config is an object and ms a number, not {config!r} and {ms!r}")
    if found.engine == PORTABLE:
        decoded(config)  # another engine knows its own
    return Measured(found, config, float(ms), problem)


def _line(entry: Measured) -> str:
    rest = {"config": dict(entry.config), "ms": round(entry.ms, 5), "problem": entry.problem}
    return json.dumps(vars(entry.key) | rest, ensure_ascii=False)


def written(entries: Iterable[Measured]) -> str:
    """A file of these entries, in the order of their keys."""
    by_key = sorted(entries, key=lambda each: tuple(vars(each.key).values()))
    lines = ",\n".join(map(_line, by_key))
    return f'{{"schema": {SCHEMA}, "entries": [\n{lines}\n]}}\n'


def put(entries: Iterable[Measured], path: Path | None = None) -> Path:
    """Add entries to a file, the user's by default; those of the same key give way.

    Safe with any number of processes, each of which may be killed at any time. A file that cannot
    be read is left as it is, and raises.
    """
    path = path or settings.tuned()
    if path is None:
        raise TunedFileError("there is no home for a file of tuned tiles; set TRANSFUSE_TUNED")
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        before = read(path)
        after = before | {each.key: each for each in entries}
        if after != before:
            _replace(path, written(after.values()))
    refresh()
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the kernel frees the lock of one that dies."""
    import fcntl  # for Linux alone, as Triton is

    file = os.open(_beside(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _replace(path: Path, text: str) -> None:
    """Write beside the file, see it on disk, then put it in the file's place."""
    fresh = _beside(path, "new")  # one name will do: what a killed writer left is written over
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")
