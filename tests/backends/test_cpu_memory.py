"""Large results lie in large pages; nothing outside them is advised on."""

import pytest
import torch

from transfuse.backends.cpu import memory


@pytest.mark.parametrize("offset", [0, 64, 4096, memory.PAGE - 64])
@pytest.mark.parametrize("size", [memory.LARGE, memory.LARGE + 4096, 5 * memory.PAGE])
def test_only_whole_pages_inside_are_advised_on(offset, size):
    address = 7 * memory.PAGE + offset
    first, length = memory.within(address, size)
    assert first % memory.PAGE == length % memory.PAGE == 0
    assert address <= first
    assert first + length <= address + size
    assert length >= size - 2 * memory.PAGE


def test_small_results_are_left_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(memory, "_madvise", lambda: lambda *words: calls.append(words))
    memory.empty((1024,), torch.float32, torch.contiguous_format)
    assert not calls
    tensor = memory.empty((3, 2**20), torch.float32, torch.contiguous_format)
    assert calls == [(*memory.within(tensor.data_ptr(), tensor.nbytes), memory.HUGEPAGE)]


def test_layout_and_type_are_kept():
    last = memory.empty((2, 64, 96, 96), torch.bfloat16, torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert last.dtype == torch.bfloat16
