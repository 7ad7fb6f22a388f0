"""Folds over nothing: an axis of no values, wherever it stands."""

import pytest
import torch

from transfuse.backends.cpu.sweeps import prepare
from transfuse.sweeps import Fold, View


@pytest.mark.parametrize("folded", [(0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_a_sum_over_nothing_is_zero(isa: str, folded: tuple[int, ...]) -> None:
    out, values = torch.full((4,), torch.nan), torch.ones(64)
    strides = (11, 7, 1)[-len(folded) :]  # no two axes make one, and the last is near
    to = View(0, torch.float32, (4,), (1,), 0)
    x = View(1, torch.float32, (4, *folded), (15, *strides), 0)
    prepare(Fold((to,), "sum", (("x", x),)))([out.data_ptr(), values.data_ptr()])
    assert torch.equal(out, torch.zeros(4))
