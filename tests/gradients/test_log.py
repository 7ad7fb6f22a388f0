"""A gradient that no kernel has is told of, once."""

import logging

import pytest
import torch

from transfuse import gradients, log
from transfuse.backends import backward
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, tanh


def test_what_torch_runs_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(backward, "_follow", refused)
    monkeypatch.setattr(log, "_said", {})
    gradients._backward.cache_clear()
    caplog.set_level(logging.WARNING, "transfuse")
    chain, problem = Chain(conv_transpose(1), tanh()), Problem.parse("n1 ci2 co3 i4 k2")
    x, weight, grad = torch.ones(1, 2, 4), torch.ones(2, 3, 2), torch.ones(1, 3, 5)
    for _ in range(2):
        found = gradients.gradients(chain, problem, grad, x, weight, {}, ["weight"])
        assert found["weight"].shape == weight.shape
    (line,) = (each.getMessage() for each in caplog.records if each.name == "transfuse")
    assert line.startswith("cpu has no kernel for a gradient of conv_transpose1d -> tanh (")
    gradients._backward.cache_clear()
