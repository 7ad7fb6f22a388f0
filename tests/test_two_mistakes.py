"""A call with two mistakes raises the type that torch raises for the two."""

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import transfuse

X, W, B = torch.ones(2, 4, 5, 6), torch.ones(4, 6, 3, 3), torch.ones(6)
THEIRS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OURS = {1: transfuse.conv_transpose1d, 2: transfuse.conv_transpose2d, 3: transfuse.conv_transpose3d}

# By argument, each wrong in its own way; torch raises for every one of them alone.
WRONG: dict[str, list[Any]] = {
    "input": [None, "x", X.numpy(), X[0, 0], X[None], X[:, :3], X[..., :0], X.half(), X.long()],
    "weight": [None, 2.0, W.numpy(), W[0], W[None], W[:3], W[:, :0], W[:, :, :0], W.double()],
    "bias": ["b", B.numpy(), B[:5], B[:, None], B[0], B.double()],
    "stride": [0, -1, 2.0, "2", True, None, (), (1, 2, 3, 4), (1.5, 2, 2)],
    "padding": [-1, "valid", 1.0, None, (1, 1, 1, 1), 40],
    "output_padding": [-1, 7, 0.0, [0] * 4],
    "dilation": [0, -2, 1.0, (1, 1, 1, 1)],
    "groups": [0, -2, 3, 2.0, True, None, (2, 2)],
}
BOOLS = {"input": X.bool(), "weight": W.bool(), "bias": B.bool()}


def raised(call: Any, given: dict[str, Any]) -> type[BaseException] | None:
    try:
        call(**given)
    except Exception as error:
        return type(error)
    return None


def compare(rank: int, changes: dict[str, Any]) -> None:
    def sized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout != torch.strided:
            return value
        return value.flatten(-2) if rank == 1 else value[..., None] if rank == 3 else value

    right = {"input": X, "weight": W, "bias": B}
    given = {name: sized(value) for name, value in (right | changes).items()}
    ours = {("x" if name == "input" else name): value for name, value in given.items()}
    expected, found = raised(THEIRS[rank], given), raised(OURS[rank], ours)
    if expected is not None:  # torch computes on types that are not implemented here
        shown = {k: v if not isinstance(v, torch.Tensor) else v.shape for k, v in changes.items()}
        assert found is expected, f"torch raises {expected}, not {found}, for {shown}"


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_type_is_torchs(rank: int, seed: int) -> None:
    choose = random.Random(1000 * rank + seed)
    for _ in range(150):
        names = choose.sample(list(WRONG), 2)
        compare(rank, {name: choose.choice(WRONG[name]) for name in names})


@pytest.mark.parametrize("name", [name for name in WRONG if name not in BOOLS])
def test_types_that_are_not_implemented_come_last(name: str) -> None:
    for value in WRONG[name]:
        compare(2, BOOLS | {name: value})
