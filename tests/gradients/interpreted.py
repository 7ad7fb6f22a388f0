"""Gradients by the GPU's kernels, run by Triton's interpreter in a process of its own.

TRITON_INTERPRET=1 TRANSFUSE_BACKEND=triton python -m tests.gradients.interpreted 0 1 2
"""

import sys

from tests.gradients.autograd import compare
from transfuse import draws
from transfuse.fills import real

SIZE = draws.Size((1, 2), (4, 8), {1: (3, 12), 2: (3, 6), 3: (2, 3)}, 2_000)


def right(seed: int) -> None:
    """Hold the gradients of a drawn chain to torch's."""
    chain, problem = draws.drawn(seed, SIZE, dtype="fp64")
    compare(chain, problem, real(chain, problem, seed))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        right(int(argument))
        print("right", argument, flush=True)
