"""Gradients by the GPU's kernels, run by Triton's interpreter in a process of its own.

    TRITON_INTERPRET=1 TRANSFUSE_BACKEND=triton python -m tests.gradients.interpreted tiles 0 1 2

Each argument is a chain below, or the seed of a drawn one. A chain in half precision, as on a GPU:
``tiles/fp16``.
"""

import sys
from unittest.mock import patch

from tests.gradients.autograd import compare
from transfuse import draws
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.fills import real
from transfuse.problem import Problem

SIZE = draws.Size((1, 2), (4, 8), {1: (3, 12), 2: (3, 6), 3: (2, 3)}, 2_000)
CHAINS = {
    "tiles": (
        s.batch_norm(weight="w", bias="v", training=True),
        s.tanh(),
        s.max_pool(2),
        s.group_norm(2, "w", "v"),
    ),
    "taps": (s.relu(), s.max_pool(3, 2, 1), s.softmax("channels"), s.avg_pool(3, 1, 1)),
    "epilogue": (s.silu(), s.add("w"), s.relu()),
}


def right(what: str) -> None:
    """Hold the gradients of a chain to torch's."""
    named, _, half = what.partition("/")
    if half:
        # As on a GPU, too, the convolution's gradients are torch's with channels innermost.
        chain = Chain(s.conv_transpose(2), *CHAINS[named])  # a norm leaves nothing of a bias
        problem = Problem.parse(f"n2 ci2 co4 i4x3 k4 s2 p1 {half}")
        with patch("transfuse.backends.backward.on_cuda", lambda device: True):
            compare(chain, problem, real(chain, problem, 0), 1e-2)
        return
    if what in CHAINS:
        chain = Chain(s.conv_transpose(2, "b"), *CHAINS[what])
        problem = Problem.parse("n2 ci2 co4 i4x3 k3 s2 p1 fp64")
    else:
        chain, problem = draws.drawn(int(what), SIZE, dtype="fp64")
    compare(chain, problem, real(chain, problem, 0))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        right(argument)
        print("right", argument, flush=True)
