"""Messages that once left a caller to guess: each names the mistake in the caller's words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import transfuse
from transfuse import Chain, DocumentError, Operator
from transfuse.problems import parse
from transfuse.stages import conv_transpose, max_pool, scale, sigmoid, softmax, tanh

X, W = torch.ones(1, 2, 3, 3), torch.ones(2, 4, 2, 2)
T = transfuse.conv_transpose
SLUG = "conv-transpose3d-max-max-sum"

WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a stage for a list": (
        lambda: T(X, W, then=sigmoid()),  # type: ignore[arg-type]
        TypeError,
        "then must be a list of stages, such as [sigmoid()], not Map",
    ),
    "a name for a list": (
        lambda: T(X, W, before="sigmoid"),  # type: ignore[arg-type]
        TypeError,
        "before must be a list of stages, such as [sigmoid()], not str",
    ),
    "a number for a list": (
        lambda: T(X, W, then=3),  # type: ignore[arg-type]
        TypeError,
        "then must be a list of stages, such as [sigmoid()], not int",
    ),
    "a class for a stage": (
        lambda: T(X, W, then=[tanh]),  # type: ignore[list-item]
        TypeError,
        "a chain is made of stages, not Function: tanh makes one when it is called, tanh(…)",
    ),
    "a function for a stage": (
        lambda: T(X, W, then=[softmax]),  # type: ignore[list-item]
        TypeError,
        "a chain is made of stages, not function: softmax makes one when it is called, softmax(…)",
    ),
    "a module for a stage": (
        lambda: T(X, W, then=[torch.nn.ReLU()]),  # type: ignore[list-item]
        TypeError,
        "not ReLU: ReLU(); in transfuse.stages there are abs, adaptive_avg_pool, ",
    ),
    "rank": (
        lambda: Chain(conv_transpose(5)),
        ValueError,
        "conv_transpose: rank must be 1, 2 or 3, not 5",
    ),
    "window": (
        lambda: T(X, W, then=[max_pool(9, stride=2, padding=1)]),
        RuntimeError,
        "smaller than a window of 9; output size would be (4 + 2*1 - 9) // 2 + 1 = -1",
    ),
    "slug": (
        lambda: transfuse.solution(3),  # type: ignore[arg-type]
        TypeError,
        "an operator's slug is a str, such as 'conv-transpose-2d-square-input-asym-kernel', not 3",
    ),
    "unknown slug": (
        lambda: transfuse.operator("max-max"),
        KeyError,
        "no operator is called 'max-max'",
    ),
    "document": (
        lambda: Operator(SLUG, Chain(conv_transpose(3), scale("gain"))).document,
        DocumentError,
        f"{SLUG}: the chain does not use conv_bias of the document, and the document does not "
        "have gain of the chain",
    ),
    "case": (
        lambda: transfuse.operator(SLUG).case("bench"),
        ValueError,
        f"{SLUG} has no case 'bench'; it has benchmark, cpu, small, ragged, or give a problem "
        "line such as 'n16 ci32 co64 i32x32x32 k5 s2 p2'",
    ),
}


def test_an_operand_may_not_be_called_as_the_kernel_is() -> None:
    """Its type was checked in place of the kernel's, whose memory was then misread."""
    tensors = {"input": "true", "kernel": "true", "weight": "true", "output": "false"}
    sizes = ["batch_size", "in_channels", "out_channels", "width"]
    sizes += ["kernel_w", "stride_w", "padding_w"]
    rows = [
        f'- {{name: {n}, type: "[VAR]", pointer: true, const: {c}}}' for n, c in tensors.items()
    ]
    rows += [f"- {{name: {n}, type: size_t, pointer: false}}" for n in sizes]
    head = ["---", "slug: one", "title: One", "difficulty: EASY", "author: me", "tags: []"]
    text = "\n".join([*head, "parameters:", *rows, "---", "y = convT(x, w) * weight"])
    one = Operator("one", Chain(conv_transpose(1), scale("weight")), document=parse(text, "one.md"))
    x, kernel, out = torch.ones(2, 3, 9), torch.ones(3, 4, 4).double(), torch.zeros(2, 4, 18)
    with pytest.raises(DocumentError, match="one: weight of the document is what the function"):
        one.solution(x, kernel, torch.ones(4), out, 2, 3, 4, 9, 4, 2, 1)
    assert not out.any()


@pytest.mark.parametrize("name", WRONG)
def test_says_what_is_wrong(name: str) -> None:
    call, kind, message = WRONG[name]
    with pytest.raises(kind) as raised:
        call()
    assert message in str(raised.value)
