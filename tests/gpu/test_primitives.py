"""Each primitive of the kernels over its whole range, on a GPU, to the bound in its row."""

import pytest
import torch

from tests.primitive_ranges import NUMBERS, arguments, swept, wrong
from transfuse.backends.triton.sweeps import prepare
from transfuse.maths.primitives import PRIMITIVES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("primitive", NUMBERS)
def test_primitive(primitive: str, dtype: torch.dtype, cuda: torch.device) -> None:
    given = arguments(primitive, dtype, 500_000)
    sweep, slots = swept(primitive, given)
    there = [slot.to(cuda) for slot in slots]
    prepare(sweep, cuda)(there)
    row = PRIMITIVES[primitive]
    assert not wrong(primitive, given, there[-1].cpu(), row.gpu, row.flushed)
