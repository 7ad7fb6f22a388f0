"""The compiled core with the instruction set of ``TRANSFUSE_ISA``, and calls with norms."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import Chain, Problem
from transfuse.accuracy import Oracle
from transfuse.backends.cpu import library
from transfuse.fills import real
from transfuse.stages import Stage, batch_norm, conv_transpose


@pytest.fixture(scope="session")
def core() -> ctypes.CDLL:
    """Missing is a fault, not a reason to skip: nothing else would notice."""
    found = library.load()
    assert found is not None, "the compiled core is not installed"
    return found


@pytest.fixture(params=("sse2", "avx2", "avx512", "neon", "generic"))
def isa(request: pytest.FixtureRequest, core: ctypes.CDLL) -> Iterator[str]:
    """Every instruction set that the core has here."""
    if request.param not in library.isas(core):
        pytest.skip(f"this machine does not run {request.param}")
    before = core.transfuse_isa()
    library.check(core, core.transfuse_use_isa(request.param.encode()))
    yield request.param
    library.check(core, core.transfuse_use_isa(before))


NAMES = ("mean", "var", "weight", "bias")
MOMENTUM, EPS = 0.3, 2.0**-7


@dataclass
class NormCall:
    """A convolution with bias, a batch norm and what follows, with tensors for it.

    ``mixed``: the norm's operands are float32 beside 16 bits.
    """

    line: str
    training: bool
    then: tuple[Stage, ...] = ()
    mixed: bool = False
    chain: Chain = field(init=False)
    operands: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.problem = Problem.parse(self.line)
        norm = batch_norm(*NAMES, self.training, MOMENTUM, EPS)
        self.chain = Chain(conv_transpose(self.problem.rank, "conv_bias"), norm, *self.then)
        self.x, self.weight, self.operands = real(self.chain, self.problem, 0)
        if self.operands["weight"].numel() > 1:
            self.operands["weight"][0] = 0
            self.operands["weight"][1] = -1.5
        if self.mixed:
            for name in NAMES:
                self.operands[name] = torch.randn(self.operands[name].shape)
            self.operands["var"].abs_()

    def oracle(self, ulp: float) -> Oracle:
        tensors = (self.x, self.weight, self.operands)
        return Oracle(self.chain, self.problem, *tensors, ulp)

    def moved(self) -> dict[str, Tensor]:
        """The running statistics after one call, by F.batch_norm in float64."""
        mean, var = (self.operands[name].double().flatten().clone() for name in NAMES[:2])
        if self.training:
            convolve: Any = getattr(F, f"conv_transpose{self.problem.rank}d")
            p = self.problem
            bias = self.operands["conv_bias"].double()
            sizes = (p.stride, p.padding, p.output_padding, p.groups, p.dilation)
            y = convolve(self.x.double(), self.weight.double(), bias, *sizes)
            F.batch_norm(y, mean, var, training=True, momentum=MOMENTUM)
        return {"mean": mean, "var": var}

    def assert_moved(self, expected: dict[str, Tensor], computed: float) -> None:
        """Within roundings of a sum in the arithmetic, and one of the type they are kept in."""
        for name, exact in expected.items():
            kept = self.operands[name].flatten()
            rounding = max(torch.finfo(kept.dtype).eps, 64 * computed)
            tolerance = {"rtol": rounding, "atol": rounding, "equal_nan": True}
            torch.testing.assert_close(kept.double(), exact, **tolerance)


@pytest.fixture(scope="session")
def norm_call() -> type[NormCall]:
    return NormCall
