"""The engines in the order in which they are asked. A new one is a folder and a line here."""

from transfuse.backends.triton.engines.contract import Engine, Task, Unsuited
from transfuse.backends.triton.engines.gemm.gemm_launch import Gemm
from transfuse.backends.triton.engines.hopper_strip.strip_launch import HopperStrip
from transfuse.backends.triton.engines.hopper_window.window_launch import HopperWindow
from transfuse.backends.triton.engines.portable.convolve_launch import Portable
from transfuse.backends.triton.engines.served import Served

ENGINES: tuple[Engine, ...] = (
    HopperWindow(),
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
                engine.emit(task, tiles)
                return Served(engine.name, str(tiles), tuple(passed_over))
        except Unsuited as why:
            reason = str(why)
        passed_over.append((engine.name, reason))
    raise AssertionError(f"no engine serves {task.segment}: {passed_over}")
