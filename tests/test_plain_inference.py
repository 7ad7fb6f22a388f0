"""Inference mode is no reason to take a tensor for more than its memory, whenever it comes on."""

import pytest
import torch

import transfuse
from transfuse import front, plain


def test_the_first_call_may_be_one_in_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plain memory is like is found out once; tensors made before are like that, too."""
    x, w = torch.randn(2, 4, 7, 9), torch.randn(4, 6, 3, 3)
    plain._usual.cache_clear()
    monkeypatch.setattr(front, "_checked", {})
    with torch.inference_mode():
        transfuse.conv_transpose2d(x, w)
        assert plain.unlike_plain(x) == plain.unlike_plain(torch.ones(1)) == ""
        assert isinstance(front._checked.get(id(w)), front.Recent), "the call is remembered"
