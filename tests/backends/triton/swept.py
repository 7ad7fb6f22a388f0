"""Jobs of ``test_sweeps.py``, as a script: ``interpret`` runs sweeps in Triton's interpreter,
``compile`` compiles them for a GPU that is not there, ``count`` only looks what would be compiled.
"""

import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from child import compiled, facts, hasten, serve, target
from torch import Tensor

from transfuse.backends.triton.sweeps import blocks, prepare
from transfuse.sweeps import Sweep, views

MOST = blocks.MOST


def interpret(sweep: Sweep, slots: list[Tensor], wide: bool = False) -> dict[str, Any]:
    """The slots after a sweep, twice; scratch memory is NaN before it is written.

    ``wide``: as if tensors were too large for 32-bit offsets.
    """
    blocks.MOST = 0 if wide else MOST
    sequence, found = prepare(sweep, torch.device("cpu")), []
    empty = torch.empty
    torch.empty = lambda *size, **options: empty(*size, **options).fill_(255)
    try:
        for _ in range(2):
            mine = [slot.clone() for slot in slots]
            sequence(mine)
            found.append(mine)
    finally:
        torch.empty = empty
    return {"slots": found, "launches": [each.kernel.__name__ for each in sequence.launches]}


def built(sweep: Sweep) -> None:
    sequence = prepare(sweep, torch.device("meta"))
    looked = views(sweep)
    types = [looked[at].dtype if at in looked else torch.float32 for at in range(max(looked) + 1)]
    memory = [*types, *(dtype for _, _, dtype in sequence.scratch)]
    for launch in sequence.launches:
        launch.compile([torch.empty(1, dtype=dtype, device="meta") for dtype in memory])


def compile_(sweep: Sweep) -> list[dict[str, Any]]:
    """What the launches of a sweep are compiled to."""
    compiled.clear()
    built(sweep)
    return [{"kernel": each.name} | facts(each, 90, verbose=True) for each in compiled]


def count(sweeps: list[Sweep]) -> dict[str, int]:
    """How many builds of each kernel it takes to serve these sweeps."""
    from triton.runtime.jit import JITFunction

    found: dict[str, int] = {}

    def note(self: Any, key: Any, signature: Any, device: Any, *rest: Any) -> Any:
        found[self.__name__] = found.get(self.__name__, 0) + 1
        kernel = SimpleNamespace(asm={"ptx": ""})
        self.device_caches[device][0][key] = kernel
        return kernel

    was, JITFunction._do_compile = JITFunction._do_compile, note
    try:
        for sweep in sweeps:
            built(sweep)
    finally:
        JITFunction._do_compile = was
    return found


JOBS: dict[str, Callable[..., Any]] = {
    "interpret": interpret,
    "compile": compile_,
    "count": count,
}

if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    hasten() if sys.argv[1] == "interpret" else target(90)
    serve(JOBS[sys.argv[1]])
