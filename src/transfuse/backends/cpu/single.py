"""One input position, no padding: the output is a product of two matrices, input times weights.

The core then takes the parts the other way round: the weights, as they lie, are its input, a signal
of ``Co * taps`` positions, and each sample of the input is an output channel. Nothing is packed but
the samples, so the weights need no copy that could be stale and are read once; and positions there
are plenty, where a tile of one would leave the microkernel idle.
"""

from dataclasses import replace
from math import prod

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem
from transfuse.stages import conv_transpose

PRODUCT = Chain(conv_transpose(1))


def serves(chain: Chain, problem: Problem) -> bool:
    """Whether the output is such a product, and a bias may be added to it after it was rounded."""
    plain = {*problem.spatial} == {1} == {*problem.dilation} and problem.groups == 1
    some = problem.batch > 0  # samples become channels, and of these there is one at least
    cropped = any((*problem.padding, *problem.output_padding))
    wide = ELEMENTS[problem.dtype].dtype == ELEMENTS[problem.dtype].compute
    return len(chain.stages) == 1 and some and plain and not cropped and wide


def product(problem: Problem) -> Problem:
    """The problem with its parts the other way round."""
    signal = problem.out_channels * prod(problem.kernel)
    return replace(
        problem,
        batch=1,
        out_channels=problem.batch,
        spatial=(signal,),
        kernel=(1,),
        stride=(1,),
        padding=(0,),
        dilation=(1,),
        output_padding=(0,),
        layout="contiguous",
    )
