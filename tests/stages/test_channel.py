"""All channels of one position: sum and softmax, position by position."""

import math

import pytest
import torch

from transfuse.problem import Shape
from transfuse.stages import Kind, Stage, softmax, sum


def along_channels(f, x: torch.Tensor) -> torch.Tensor:
    """``f`` on the list of channels at each position."""
    columns = x.movedim(1, -1)
    flat = [f(column) for column in columns.reshape(-1, x.shape[1]).tolist()]
    return torch.tensor(flat, dtype=x.dtype).reshape(*columns.shape[:-1], -1).movedim(-1, 1)


def plain_softmax(values: list[float]) -> list[float]:
    top = max(values)
    terms = [math.exp(value - top) for value in values]
    return [term / math.fsum(terms) for term in terms]


@pytest.fixture(params=[(2, 5, 7), (3, 1, 2, 4), (1, 8, 2, 3, 2)], ids=str)
def x(request: pytest.FixtureRequest) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(request.param, dtype=torch.float64, generator=generator) * 5


def test_sum(x: torch.Tensor) -> None:
    got = sum("channels").apply(x, {})
    expected = along_channels(lambda column: [math.fsum(column)], x)
    # One rounding of each partial sum; the terms may cancel, so it is the largest that counts.
    torch.testing.assert_close(got, expected, rtol=0, atol=float(x.abs().sum(1).max()) * 1e-15)


def test_sum_of_integers_is_exact() -> None:
    x = torch.arange(-30, 30, dtype=torch.float32).reshape(2, 5, 6)
    expected = along_channels(lambda column: [math.fsum(column)], x)
    assert torch.equal(sum("channels").apply(x, {}), expected)


def test_softmax(x: torch.Tensor) -> None:
    expected = along_channels(plain_softmax, x)
    torch.testing.assert_close(softmax("channels").apply(x, {}), expected, rtol=1e-14, atol=0)


def test_softmax_takes_off_the_maximum_first() -> None:
    x = torch.tensor([1000.0, 999.0, -1000.0]).reshape(1, 3, 1)
    torch.testing.assert_close(
        softmax("channels").apply(x, {}), along_channels(plain_softmax, x), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("stage", [sum("channels"), softmax("channels")], ids=str)
def test_nan_stays_in_its_position(stage: Stage) -> None:
    x = torch.zeros(2, 3, 4)
    x[1, 2, 3] = torch.nan
    assert stage.apply(x, {}).isnan().any(1).nonzero().tolist() == [[1, 3]]


def test_statements() -> None:
    shape = Shape(2, 5, (3, 4))
    assert sum("channels").shape(shape) == Shape(2, 1, (3, 4))
    assert softmax("channels").shape(shape) == shape
    for stage, text in {
        sum("channels"): "sum(channels)",
        softmax("channels"): "softmax(channels)",
    }.items():
        assert stage.kind is Kind.CHANNEL
        assert stage.operands == ()
        assert stage.need((1, 2), (3, 4)) == (1, 2)
        assert str(stage) == text
    assert sum("channels").exact
    assert not softmax("channels").exact


def test_only_what_exists_can_be_asked_for() -> None:
    with pytest.raises(ValueError, match="softmax goes over 'channels' or 'space', not 'batch'"):
        softmax("batch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sum goes over 'channels', not 'space'"):
        sum("space")  # type: ignore[arg-type]
