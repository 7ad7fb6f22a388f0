"""torch's own examination of the operations: schema, fake results, gradients, traces."""

import pytest
import torch
from torch.library import opcheck

from tests.ops.calls import CASES, arguments, learning, learnt, tensors
from transfuse import fills
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, sigmoid

OPS = torch.ops.transfuse
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
LAYOUTS = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "channels_last": lambda x: x.contiguous(
        memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_chain_in_every_layout(name: str) -> None:
    """Sizes, strides, type and device of the fake result are those of the real one."""
    chain, problem = CASES[name]
    x, weight, operands = tensors(name)
    for lay in LAYOUTS.values():
        given = arguments(chain, problem, (lay(x), weight, operands))
        opcheck(OPS.chain, given, test_utils=CHECKS)
        opcheck(OPS.chain, learning(chain, given), test_utils=CHECKS)
        y = OPS.chain(*given)
        wanted = [True, True, *learnt(chain)]
        backward = (torch.randn_like(y), *given[:-1], wanted)
        opcheck(OPS.chain_backward, backward, test_utils=CHECKS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith("conv-t") else pytest.mark.long)
        for name in CASES
    ],
)
def test_traced_with_sizes_left_open(name: str) -> None:
    chain, problem = CASES[name]
    given = arguments(chain, problem, tensors(name))
    opcheck(OPS.chain, learning(chain, given), test_utils="test_aot_dispatch_dynamic")


def updating() -> tuple[Chain, Problem]:
    chain = Chain(
        conv_transpose(2, "bias"), batch_norm("mean", "var", "w", "b", training=True), sigmoid()
    )
    return chain, Problem.parse("n2 ci3 co4 i4x5 k3 s2 p1 fp64 cpu")


def test_a_chain_that_updates() -> None:
    chain, problem = updating()
    given = arguments(chain, problem, fills.real(chain, problem, 0))
    opcheck(OPS.chain_updating, given, test_utils=CHECKS)
    opcheck(OPS.chain_updating, learning(chain, given))
    before = [each.clone() for each in given[2]]
    y, moved = OPS.chain_updating(*given)
    assert all(a.equal(b) for a, b in zip(before, given[2], strict=True)), "nothing is written"
    assert len(moved) == 2
    assert not moved[0].equal(before[1])
    assert y.equal(OPS.chain_updating(*given)[0])
    with pytest.raises(RuntimeError, match="moves running statistics"):
        OPS.chain(*given)
