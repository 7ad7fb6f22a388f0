"""Jobs of ``test_sweeps.py``, as a script: ``interpret`` runs sweeps in Triton's interpreter,
``compile`` compiles them for a GPU that is not there, ``count`` only looks what would be compiled.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from child import facts, hasten, serve
from torch import Tensor

from transfuse.backends.triton.build import Build
from transfuse.backends.triton.sweeps import blocks, prepare, prepare_all
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
    return {"slots": found, "launches": [each.kernel.name for each in sequence.launches]}


def interpret_all(sweeps: list[Sweep], slots: list[Tensor]) -> dict[str, Any]:
    """The slots after sweeps in turn, some of them as one; the launches of each sequence."""
    found = prepare_all(sweeps, torch.device("cpu"))
    for sequence in found:
        sequence(slots)
    launches = [[each.kernel.name for each in sequence.launches] for sequence in found]
    return {"slots": slots, "launches": launches}


def built(sweep: Sweep) -> list[Build]:
    sequence = prepare(sweep, torch.device("meta"))
    looked = views(sweep)
    types = [looked[at].dtype if at in looked else torch.float32 for at in range(max(looked) + 1)]
    memory = [*types, *(dtype for _, _, dtype in sequence.scratch)]
    return sequence.build([torch.empty(1, dtype=dtype, device="meta") for dtype in memory], 90)


def compile_(sweep: Sweep) -> list[dict[str, Any]]:
    """What the launches of a sweep are compiled to."""
    return [
        {"kernel": each.compiled.name} | facts(each.compiled, 90, verbose=True)
        for each in built(sweep)
    ]


def count(sweeps: list[Sweep]) -> dict[str, int]:
    """How many builds of each kernel it takes to serve these sweeps."""
    found = {each.key: each.kernel.name for sweep in sweeps for each in built(sweep)}
    return Counter(found.values())


JOBS: dict[str, Callable[..., Any]] = {
    "interpret": interpret,
    "interpret-all": interpret_all,
    "compile": compile_,
    "count": count,
}

if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    if sys.argv[1].startswith("interpret"):
        hasten()
    serve(JOBS[sys.argv[1]])
