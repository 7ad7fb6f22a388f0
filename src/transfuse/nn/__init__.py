"""Modules: torch's transposed convolutions, chains around them, and one for each named operator.

>>> layer = transfuse.nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1)
>>> layer = transfuse.nn.FusedConvTranspose(16, 32, (4, 4), stride=2, then=[torch.nn.ReLU()])
>>> layer = transfuse.nn.ConvTranspose3dMaxMaxSum(16, 32, 5, stride=2, padding=2)
"""

from transfuse.nn import init
from transfuse.nn.fused import (
    FusedConvTranspose,
    FusedConvTranspose1d,
    FusedConvTranspose2d,
    FusedConvTranspose3d,
)
from transfuse.nn.layers import (
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
)
from transfuse.nn.operations import Operation, module_name, module_of
from transfuse.operators import OPERATORS


def __getattr__(name: str) -> type[Operation]:
    """The module of an operator, made when it is first asked for."""
    for slug, operator in OPERATORS.items():
        if module_name(slug) == name:
            return module_of(operator)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *map(module_name, OPERATORS)})


__all__ = [
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "FusedConvTranspose",
    "FusedConvTranspose1d",
    "FusedConvTranspose2d",
    "FusedConvTranspose3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "init",
    *map(module_name, OPERATORS),
]
