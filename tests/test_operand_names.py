"""Names in messages and printed chains are the caller's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import transfuse
from transfuse import Chain
from transfuse.stages import add, conv_transpose, group_norm, scale, sigmoid

X, W = torch.ones(1, 2, 3, 3), torch.ones(2, 4, 2, 2)
B, SHORT, WIDE = torch.ones(4), torch.ones(3), torch.ones(4, dtype=torch.float64)
T = transfuse.conv_transpose

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "bias, its size": (
        lambda: transfuse.conv_transpose2d(X, W, SHORT),
        "expected bias to hold one value for each of 4 channels, such as shape [4], but got [3]",
    ),
    "bias, its type": (
        lambda: transfuse.conv_transpose2d(X, W, WIDE),
        "input and bias must have the same type, but got torch.float32 and torch.float64",
    ),
    "bias, with stages": (
        lambda: T(X, W, SHORT, then=[sigmoid()]),
        "expected bias to hold one value for each of 4 channels",
    ),
    "term of the one add": (
        lambda: T(X, W, B, then=[add(SHORT)]),
        "expected add.other to hold one value for each of 4 channels",
    ),
    "term of the second add": (
        lambda: T(X, W, B, then=[add(B), sigmoid(), add(SHORT)]),
        "expected add2.other to hold one value",
    ),
    "the first add holds a number": (
        lambda: T(X, W, B, then=[add(1.0), add(SHORT)]),
        "expected add2.other to hold one value",
    ),
    "before and after": (
        lambda: T(X, W, before=[scale(SHORT)], then=[scale(B)]),
        "expected scale1.factor to hold one value for each of 2 channels",
    ),
    "weight of a norm": (
        lambda: T(X, W, B, then=[group_norm(2, SHORT, B)]),
        "expected group_norm.weight to hold one value",
    ),
    "bias of a norm": (
        lambda: T(X, W, then=[group_norm(2, B, WIDE)]),
        "input and group_norm.bias must have the same type",
    ),
    "memory of the bias": (
        lambda: transfuse.conv_transpose1d(X[:, :, 0], W[:, :1, 0], B[:1], out=B[None, None]),
        "output shares memory with bias",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_messages_name_what_the_caller_gave(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(RuntimeError) as raised:
        call()
    assert message in str(raised.value)


def test_a_refusal_prints_the_callers_names() -> None:
    with pytest.raises(transfuse.UnsupportedError) as raised:
        torch.vmap(lambda x: T(x, W, B, then=[group_norm(2, B)], backend="cpu"))(X[None])
    chain = "conv_transpose2d(+ bias) -> group_norm(2, group_norm.weight)"
    assert f"  chain    {chain}\n" in str(raised.value)


def test_a_name_that_is_given_is_not_taken_by_a_tensor() -> None:
    """Else ``add("bias")``, for which nothing is given, would silently add the bias again."""
    with pytest.raises(TypeError, match="nothing is given under the name 'bias'"):
        T(X, W, B, then=[add("bias")])
    terms = [torch.full((4,), float(value)) for value in range(3)]
    chain, env = Chain(
        conv_transpose(2, terms[0]), add("add1.other"), add(terms[1]), add("bias"), add(terms[2])
    ).lift()
    used = [name for stage in chain.stages for name in stage.operands]
    assert len({*used}) == 5
    assert [env[name] for name in used if name in env] == [terms[0], terms[1], terms[2]]
    assert {*used} - {*env} == {"add1.other", "bias"}


def test_names_are_unique_for_any_repetition() -> None:
    made = [group_norm(2, B, B), add(B), scale(B)] * 4
    chain, env = Chain(*made[:5], conv_transpose(2, B), *made[5:]).lift()
    used = [name for stage in chain.stages for name in stage.operands]
    assert len({*used}) == len(used) == len(env) == 17
    assert used[:4] == ["group_norm1.weight", "group_norm1.bias", "add1.other", "scale1.factor"]
    assert "bias" in used


def test_a_chain_that_holds_tensors_prints_their_shapes() -> None:
    chain = Chain(conv_transpose(2, B), add(torch.ones(4, 1, 1)), group_norm(2, bias=B))
    assert str(chain) == (
        "conv_transpose2d(+ tensor[4]) -> add(tensor[4, 1, 1]) -> group_norm(2, bias=tensor[4])"
    )
    with pytest.raises(ValueError, match=r"not 2: conv_transpose2d\(\+ tensor\[4\]\) -> conv"):
        Chain(conv_transpose(2, B), conv_transpose(2))


def test_a_solution_names_its_documents_parameters() -> None:
    slug = "conv-transpose3d-max-max-sum"
    x, kernel, bias = torch.randn(2, 3, 4, 4, 7), torch.randn(3, 4, 5, 5, 5), torch.randn(4)
    out = torch.empty(2, 1, 1, 1, 2)
    sizes = (2, 3, 4, 4, 4, 7, 5, 5, 5, 2, 2, 2, 2, 2, 2)
    for tensors, says in (
        ((x, kernel[:2], bias, out), r"expected kernel of shape \[3, 4, 5, 5, 5\]"),
        ((x, kernel.double(), bias, out), "input and kernel must have the same type"),
        ((x, kernel, bias, kernel.view(-1)[:4].view(2, 1, 1, 1, 2)), "memory with kernel"),
    ):
        with pytest.raises(RuntimeError, match=says):
            transfuse.solution(slug)(*tensors, *sizes)
