"""Machine code of builds: from the store, or compiled side by side and put there; then loaded."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from transfuse.backends.triton import driver
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.store import shelves
from transfuse.backends.triton.store.entry import Entry
from transfuse.log import once

WORKERS = 16
"""Kernels compiled at once: half of the time goes to what leaves Python's lock alone."""


@dataclass(frozen=True)
class Loaded:
    """A kernel in the driver: its function for one device, and how it is launched.

    ``parameters``: the bytes of each. ``descriptors``: as an entry has them.
    """

    name: str
    function: int
    parameters: tuple[int, ...]
    shared: int
    threads: int
    descriptors: tuple[Mapping[str, Any], ...]


_loaded: dict[tuple[int, str], Loaded] = {}
"""By device and key: launch plans share kernels, and no kernel is ever unloaded."""


def loaded(builds: Sequence[Build], device: int) -> list[Loaded]:
    """Each build's kernel for a device, which this thread has made current if any.

    Raises ``Declined`` where compiled code is known to be wrong, ``Strange`` where the driver's own
    calls cannot launch it; then none is loaded that was not before.
    """
    missing = {each.key: each for each in builds if (device, each.key) not in _loaded}
    if missing:
        driver.make_current(device)
    for key in list(missing):
        entry = shelves.find(key)
        if entry is None:
            continue
        try:
            _loaded[device, key] = _load(entry)
            del missing[key]
        except driver.DriverError as fault:  # of a newer compiler than this driver knows, perhaps
            line = "the stored kernel %s is left out, and compiled here: %s"
            once(logging.WARNING, ("kernel", key), line, entry.name, str(fault))
    for entry in compiled(missing.values()).values():
        _loaded[device, entry.key] = _load(entry)
    return [_loaded[device, each.key] for each in builds]


def entries(builds: Iterable[Build]) -> list[Entry]:
    """The entry of each build, in order: those there are, and those compiled now."""
    wanted = list(builds)
    found = {each.key: shelves.find(each.key) for each in wanted}
    made = compiled(each for each in wanted if found[each.key] is None)
    return [found[each.key] or made[each.key] for each in wanted]


def compiled(builds: Iterable[Build]) -> dict[str, Entry]:
    """Builds compiled side by side, and kept in the user's folder, by key."""
    wanted = {each.key: each for each in builds}
    with ThreadPoolExecutor(min(WORKERS, len(wanted) or 1)) as workers:
        made = list(workers.map(Build.entry, wanted.values()))
    for entry in made:
        shelves.keep(entry)
    return {entry.key: entry for entry in made}


def _load(entry: Entry) -> Loaded:
    threads = 32 * entry.warps
    function = driver.load(entry.code, entry.name, entry.shared, threads)
    sizes = tuple(driver.parameters(function))
    return Loaded(entry.name, function, sizes, entry.shared, threads, entry.descriptors)
