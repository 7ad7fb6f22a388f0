"""Where compiled kernels lie: in the user's folder, then in the one that came with the package.

An entry is a file by the name of its key. It is written beside its place and then put there, so a
reader finds it whole or not at all, whoever else writes and whoever is killed when. What cannot be
read is left out, with one line in the log, and written anew when it has been compiled again.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from transfuse import settings
from transfuse.backends.triton.store.entry import Damaged, Entry, dumped, parsed
from transfuse.log import once

SHIPPED = Path(__file__).parents[1] / "kernels"
"""The folder of the kernels that come with the package; a source tree has none."""
SUFFIX = ".kernel"


def folders() -> list[Path]:
    """The folders there may be, in the order in which they are looked through."""
    mine = settings.kernels()
    return [*([mine] if mine else []), SHIPPED]


def counted() -> list[dict[str, Any]]:
    """The folders there are, and how many entries each has."""
    return [
        {"folder": str(folder), "kernels": sum(1 for _ in folder.glob(f"*{SUFFIX}"))}
        for folder in folders()
        if folder.is_dir()
    ]


def place(folder: Path, key: str) -> Path:
    """Where a folder keeps the entry of a key."""
    return folder / f"{key}{SUFFIX}"


def find(key: str) -> Entry | None:
    """The entry of a key, from the first folder that has it whole."""
    for folder in folders():
        path = place(folder, key)
        try:
            return parsed(path.read_bytes(), key)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, Damaged) as fault:
            leave_out(path, fault)
    return None


def holds(key: str) -> bool:
    """Whether there is a file for a key; nobody has looked into it."""
    return any(place(folder, key).exists() for folder in folders())


def leave_out(path: Path, fault: Exception) -> None:
    """Say once that a file is not used, and why."""
    once(logging.WARNING, ("kernel", str(path)), "%s is left out: %s", str(path), str(fault))


def put(entry: Entry, folder: Path) -> Path:
    """Write an entry into a folder; raises ``OSError`` where that cannot be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = place(folder, entry.key)
    beside = folder / f".{entry.key[:16]}.{os.getpid()}.{token_hex(4)}"
    try:
        with open(beside, "xb") as stream:
            stream.write(dumped(entry))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    return path


def keep(entry: Entry) -> None:
    """Write an entry into the user's folder; where that cannot be, say so once and go on."""
    folder = settings.kernels()
    if folder is None:
        return
    try:
        put(entry, folder)
    except OSError as fault:
        line = "compiled kernels are not kept in %s: %s"
        once(logging.WARNING, ("kernels", str(folder)), line, str(folder), str(fault))
