"""Each primitive of the kernels over its whole range, to the bound in its row, in the interpreter.

There the functions that a GPU has are NumPy's; what is made of them is as on a GPU, where
``tests/gpu/test_primitives.py`` does the same.
"""

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tests.primitive_ranges import NUMBERS, arguments, swept, wrong
from transfuse.maths.primitives import PRIMITIVES

from .conftest import Child


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child("interpret", "swept.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("primitive", NUMBERS)
def test_primitive(primitive: str, dtype: torch.dtype, interpreter: Child) -> None:
    given = arguments(primitive, dtype, 5_000)
    sweep, slots = swept(primitive, given)
    found = interpreter(sweep=sweep, slots=slots)["slots"][0][-1]
    row = PRIMITIVES[primitive]
    assert not wrong(primitive, given, found, row.gpu, row.flushed)
