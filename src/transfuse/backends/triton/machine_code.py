"""Machine code of builds: from the store, or compiled side by side and put there; then loaded."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import Any

from transfuse.backends.triton import driver
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.store import shelves
from transfuse.backends.triton.store.entry import Entry
from transfuse.log import once


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
        shelves.keep(entry)
        _loaded[device, entry.key] = _load(entry)
    return [_loaded[device, each.key] for each in builds]


def entries(builds: Iterable[Build]) -> list[Entry]:
    """The entry of each build, in order: those there are, and those compiled now."""
    wanted = list(builds)
    found = {each.key: shelves.find(each.key) for each in wanted}
    made = compiled(each for each in wanted if found[each.key] is None)
    for entry in made.values():
        shelves.keep(entry)
    return [found[each.key] or made[each.key] for each in wanted]


def foresee(builds: Iterable[Build], device: int) -> None:
    """Begin to compile what will be needed soon and nobody has: nobody waits for it here."""
    for each in builds:
        if (device, each.key) not in _loaded and not shelves.holds(each.key):
            _begun(each)


def compiled(builds: Iterable[Build]) -> dict[str, Entry]:
    """Builds compiled side by side, by key.

    A thread for each: half of the time goes to what leaves Python's lock alone. The kernels that
    take longest are begun first.
    """
    wanted = {each.key: each for each in builds}.values()
    slow_first = sorted(wanted, key=lambda each: not each.kernel.slow)
    begun = [(each.key, _begun(each)) for each in slow_first]
    wait(future for _, future in begun)
    for key, _ in begun:
        _begun_by_key.pop(key, None)
    return {key: future.result() for key, future in begun}


_begun_by_key: dict[str, Future[Entry]] = {}
"""What is being compiled, or was and has not been asked for yet."""
os.register_at_fork(after_in_child=_begun_by_key.clear)  # no thread of ours survives in a child


def _begun(build: Build) -> Future[Entry]:
    """The entry of a build, sooner or later; one thread compiles it, whoever else wants it."""
    mine: Future[Entry] = Future()
    future = _begun_by_key.setdefault(build.key, mine)
    if future is mine:
        Thread(target=_compile, args=(build, mine), name=f"compiles {build.key}").start()
    return future


def _compile(build: Build, future: Future[Entry]) -> None:
    try:
        entry = build.entry()
    except BaseException as error:
        build.forget()
        future.set_exception(error)
    else:
        build.forget()
        future.set_result(entry)


def _load(entry: Entry) -> Loaded:
    threads = 32 * entry.warps
    function = driver.load(entry.code, entry.name, entry.shared, threads)
    sizes = tuple(driver.parameters(function))
    return Loaded(entry.name, function, sizes, entry.shared, threads, entry.descriptors)
