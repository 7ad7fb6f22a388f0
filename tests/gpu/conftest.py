"""Everything here needs a GPU; without one each test says so."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", torch.cuda.current_device())
    yield device
    torch.cuda.synchronize(device)
