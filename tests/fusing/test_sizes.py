"""Sizes that a model asks of values within a chain do not end it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.fusing.captured import fused, never_unfused, same
from transfuse.fusing.sizes import convolved_sizes


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": [3], "dilation": 2, "groups": 2},
    ],
    ids=str,
)
def test_sizes_are_the_convolutions(rank: int, batched: bool, options: dict[str, Any]) -> None:
    x = torch.randn(*([5] if batched else []), 4, *(6, 7, 5)[:rank])
    weight = torch.randn(4, 3, *(3, 2, 4)[:rank])
    usual = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    y = getattr(F, f"conv_transpose{rank}d")(x, weight, **options)
    assert convolved_sizes(x, weight, **(usual | options)) == y.shape
    assert isinstance(convolved_sizes(x, weight, **(usual | options)), torch.Size)


def joined(x: Tensor, w: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
    """A U-Net's layer that asks for sizes on its way, and a view by them."""
    y = F.conv_transpose2d(x, w, None, 2)
    height = y.size(2)
    y = F.relu(y)
    n, c = y.shape[0], y.size()[y.dim() - 3]
    skip = skip.to(y.device)
    z = torch.cat([y, skip], 1)
    return z, skip.reshape(n * c * height, -1)


def test_a_chain_goes_on_behind_values_that_are_asked_for_sizes() -> None:
    before, after, (site,) = fused(joined)
    assert site.operations == ("conv_transpose2d", "relu", "cat")
    never_unfused(after, site)
    for size in (4, 5):
        x, skip = torch.randn(2, 3, size, 4).double(), torch.randn(2, 4, 2 * size, 8).double()
        same(before, after, [x, torch.randn(3, 4, 2, 2).double(), skip])


def test_sizes_behind_what_may_change_them_end_the_chain() -> None:
    def pooled(x: Tensor, w: Tensor) -> Any:
        y = F.max_pool2d(F.conv_transpose2d(x, w, None, 2), 2)
        return F.relu(y), y.size(2)

    before = fx.symbolic_trace(pooled)
    _, after, (site,) = fused(pooled)
    assert site.operations == ("conv_transpose2d", "max_pool2d")
    assert "size" in site.why
    given = torch.randn(2, 3, 4, 4).double(), torch.randn(3, 4, 2, 2).double()
    torch.testing.assert_close(before(*given), after(*given))
