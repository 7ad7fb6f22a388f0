"""CUDA graphs: the public calls of all operators in one, replayed on other inputs."""

import sys
from types import FrameType
from typing import Any

import pytest
import torch

from tests.small_calls import chains, five, plain


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
def test_all_in_one_graph(arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay gives the bits of a call on the same values, and none of our lines runs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", arithmetic == "tf32")
    dtype = torch.float32 if arithmetic == "tf32" else torch.float16
    calls = [*five("cuda", arithmetic), *plain("cuda", dtype), *chains("cuda", dtype)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # the first compiles
            for each in calls:
                each.ours()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [each.ours() for each in calls]
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        for each in calls:
            for tensor in each.tensors:
                tensor.copy_(torch.randn_like(tensor))
        for result in captured:
            result.fill_(torch.nan)
        ran: list[str] = []

        def watch(frame: FrameType, event: str, argument: Any, ran: list[str] = ran) -> None:
            if "transfuse" in frame.f_globals.get("__name__", ""):
                ran.append(frame.f_code.co_name)

        sys.setprofile(watch)
        graph.replay()
        sys.setprofile(None)
        assert not ran
        torch.cuda.synchronize()
        for each, result in zip(calls, captured, strict=True):
            assert torch.equal(result, each.ours()), f"{each.name}, replay {seed}"


@pytest.mark.parametrize("name", ["plain 2d", "sigmoid, scale, tanh 2d"])
def test_a_call_after_a_capture_has_memory_of_its_own(name: str) -> None:
    """Scratch memory of a graph is the graph's: calls between replays do not disturb them."""
    each = next(each for each in (*plain("cuda"), *chains("cuda")) if each.name == name)
    right = each.ours()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = each.ours()
    for _ in range(3):
        captured.fill_(torch.nan)
        graph.replay()
        others = [each.ours() for _ in range(3)]
        torch.cuda.synchronize()
        assert torch.equal(captured, right)
        assert all(torch.equal(other, right) for other in others)
