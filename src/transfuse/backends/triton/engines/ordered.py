"""The engines in the order in which they are asked. A new one is a folder and a line here."""

import logging
from dataclasses import replace
from typing import Any

from transfuse.backends.triton import installed
from transfuse.backends.triton.engines.contract import Engine, Task, Unsuited
from transfuse.backends.triton.engines.few.few_launch import Few
from transfuse.backends.triton.engines.gemm.gemm_launch import Gemm
from transfuse.backends.triton.engines.hopper_strip.strip_launch import HopperStrip
from transfuse.backends.triton.engines.hopper_window.window_launch import HopperWindow
from transfuse.backends.triton.engines.portable.convolve_launch import Portable
from transfuse.backends.triton.engines.served import Served
from transfuse.backends.triton.store import shelves
from transfuse.log import once

ENGINES: tuple[Engine, ...] = (
    HopperWindow(),
    Few(),
    Gemm(),
    HopperStrip(),
    Portable(),  # serves every task, so nothing after it is asked
)


def serve(task: Task) -> Served:
    """The launches of a task, by the first engine that takes it."""
    passed_over: list[tuple[str, str]] = []
    for engine in ENGINES:
        reason = engine.verdict(task)
        try:
            if not reason:
                tiles = next(engine.configs(task))
                reason = missing(engine, task, tiles)
            if not reason:
                engine.emit(task, tiles)
                return Served(engine.name, str(tiles), engine.share(tiles), tuple(passed_over))
        except Unsuited as why:
            reason = str(why)
        passed_over.append((engine.name, reason))
    raise AssertionError(f"no engine serves {task.segment}: {passed_over}")


def missing(engine: Engine, task: Task, tiles: Any) -> str:
    """Why the kernels of a task are not to be had; empty where they are.

    What this version of Triton does not compile, another may have compiled into the store.
    """
    if installed.any_row():
        return ""
    trial = replace(task, draft=task.draft.copy())
    engine.emit(trial, tiles)
    for launch in trial.draft.launches[len(task.draft.launches) :]:
        why = installed.uncompilable(launch.kernel)
        if why and not task.draft.from_store:
            return f"{why}, and Triton is to launch it"
        if why and shelves.find(launch.build(*trial.draft.likeness()).key) is None:
            once(logging.WARNING, ("missing", engine.name), "%s; nor is one stored", why)
            return f"{why}; nor is one stored"
    return ""
