"""What Python is told of values while a forward is captured holds for later calls, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from tests.fusing.alike import check, drawn, expect_alike, made

X = drawn(4, 3, 3, 3)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 3, 4, stride=2, padding=1)


class Parts(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.up(part).relu() for part in x.split(2)])


class Samples(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.up(each[None]).relu() for each in x])


class Unbound(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.up(each[None]).relu() for each in x.unbind()])


class Rows(Base):
    def forward(self, x: Tensor) -> Tensor:
        return sum((each.sum() for each in self.up(x).split(3, dim=2)), start=x.sum())


@pytest.mark.parametrize("make", [Parts, Samples, Unbound, Rows])
@pytest.mark.parametrize("example", [None, X])
def test_how_many_parts_there_are_is_asked_of_each_size(
    make: Callable[[], nn.Module], example: Any
) -> None:
    fused, twin = transfuse.fuse(made(make), example), made(make)
    for sizes in ((4, 3, 3, 3), (6, 3, 3, 3), (1, 3, 5, 3), (4, 3, 3, 3)):
        expect_alike(fused, twin, drawn(*sizes))
    assert all(row.fused for row in transfuse.fusing.explain(fused).rows)


class Gated(nn.Module):
    """Its result is unpacked into arguments, which asks how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(*self.up(x).relu().chunk(2, 1))


def test_what_is_unpacked_waits_for_the_first_call() -> None:
    fused = transfuse.fuse(made(Gated))
    (row,) = fused.explain().rows
    assert row.pending
    assert "how many" in row.why
    check(Gated, X, sites=1)
    fused(X)
    (row,) = fused.explain().rows
    assert row.operations == ("conv_transpose2d", "relu")


class Encoder(nn.Module):
    """Left whole: it sets an attribute."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.scale, self.counts, self.calls, self.last = 1.0, counts, 0, ""

    def forward(self, x: Tensor) -> Tensor:
        self.last = "conv"
        self.calls += self.counts
        return F.interpolate(self.conv(x), scale_factor=self.scale)


class Decides(Base):
    """Decides by a size that a module left whole has made."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.encoder = Encoder(counts)
        self.encoder.last = "conv"

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.encoder(x))
        return y.relu() if y.shape[-1] > 6 else y.tanh()


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("example", [None, X])
def test_sizes_that_a_module_left_whole_decides(counts: bool, example: Any) -> None:
    fused = transfuse.fuse(made(lambda: Decides(counts)), example)
    twin = made(lambda: Decides(counts))
    for scale in (1.0, 2.0, 1.0):
        fused.encoder.scale = twin.encoder.scale = scale
        expect_alike(fused, twin, X)
        expect_alike(fused, twin, X)
    (row,) = fused.explain().rows
    assert row.fused
    assert row.chain == "conv_transpose2d(+ bias)" + ("" if counts else " -> tanh")
    assert ("encoder gives, which changes self.calls" in row.why) == counts


class Embedded(Base):
    """Decides by the sizes of a tensor of its own, and by those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Parameter(torch.ones(3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        known = self.where
        if known.shape[-1] != x.shape[-1]:
            known = F.interpolate(known[None], size=x.shape[2:])[0]
        return self.up(x + known).relu()


def test_sizes_of_tensors_that_modules_hold() -> None:
    fused, twin = transfuse.fuse(made(Embedded)), made(Embedded)
    for sizes in ((3, 3), (5, 5), (3, 3)):
        for model in (fused, twin):
            model.where = nn.Parameter(torch.ones(3, *sizes, dtype=torch.float64))
        expect_alike(fused, twin, X)
        expect_alike(fused, twin, drawn(1, 3, 4, 4))


class Texts(Base):
    def forward(self, x: Tensor) -> Any:
        return self.up(x).relu(), f"{tuple(x.shape)}"


class Formatted(Base):
    def forward(self, x: Tensor) -> Any:
        return self.up(x).relu(), f"({x.shape[0]:d}, {x.shape[1]}, {x.shape[2]!s}, {x.shape[3]!r})"


@pytest.mark.parametrize("make", [Texts, Formatted])
def test_sizes_in_texts(make: Callable[[], nn.Module]) -> None:
    fused = transfuse.fuse(made(make))
    for sizes in ((4, 3, 3, 3), (2, 3, 3, 5)):
        assert fused(drawn(*sizes))[1] == f"{sizes}"
    assert fused.explain().rows[0].chain == "conv_transpose2d(+ bias) -> relu"


class Recurrent(nn.Module):
    """Sizes of what a recurrent layer gives decide something, as in Encodec's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.up = nn.LSTM(3, 3), nn.ConvTranspose1d(3, 4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lstm(x.permute(2, 0, 1))[0].permute(1, 2, 0)
        return F.elu(self.up(y))[..., : y.shape[-1] + 1]


def test_sizes_of_what_recurrent_layers_give() -> None:
    model, x = Recurrent().eval(), torch.randn(2, 3, 7)
    own = model.lstm._flat_weights
    fused = transfuse.fuse(model, x)
    (row,) = fused.explain().rows
    assert row.chain is not None
    assert row.chain.endswith("elu")
    assert model.lstm._flat_weights is own
    torch.testing.assert_close(fused(x), model(x))


class Tables(nn.Module):
    """Looks sizes up, one by one and together."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 4, stride=2, padding=1)
        self.gains = {4: 2.0, 5: 3.0}

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.up(x)) * self.gains.get(x.shape[2], 1.0)
        return y if x.shape in {(3, 2, 4), (3, 2, 6)} else y + 1


@pytest.mark.parametrize("example", [None, drawn(3, 2, 4)])
def test_sizes_looked_up_in_tables(example: Any) -> None:
    fused, twin = transfuse.fuse(made(Tables), example), made(Tables)
    for _ in range(2):
        for length in (4, 5, 6, 7):
            expect_alike(fused, twin, drawn(3, 2, length))


class Refuses(nn.Module):
    """Its error holds what it was given, not a text."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 4, stride=2, padding=1)

    def forward(self, x: Tensor, size: int | None = None) -> Tensor:
        if size is None:
            raise LookupError(x.shape[2])
        return torch.relu(self.up(x)) * size


def test_errors_that_hold_sizes() -> None:
    fused, twin = transfuse.fuse(made(Refuses)), made(Refuses)
    for _ in range(2):
        with pytest.raises(LookupError, match=r"^5$"):
            fused(drawn(2, 2, 5))
        expect_alike(fused, twin, drawn(2, 2, 5), size=2)


def has_a_field(x: Tensor, y: Tensor) -> bool:
    return hasattr(x, "sample") or hasattr(y, "logits")


def has_a_mask(x: Tensor, y: Tensor) -> bool:
    return getattr(x, "mask", None) is not None


def has_a_function(x: Tensor, y: Tensor) -> bool:
    return y.grad_fn is None


def has_a_method_of_sizes(x: Tensor, y: Tensor) -> bool:
    return hasattr(y.shape, "sample") or not hasattr(y.shape, "numel")


def is_a_number(x: Tensor, y: Tensor) -> bool:
    return isinstance(y.shape[0], int)


def is_a_tuple(x: Tensor, y: Tensor) -> bool:
    return isinstance(x.shape, tuple)


@pytest.mark.parametrize("example", [None, drawn(3, 2, 4)])
@pytest.mark.parametrize(
    "ask",
    [has_a_field, has_a_mask, has_a_function, has_a_method_of_sizes, is_a_number, is_a_tuple],
    ids=lambda ask: ask.__name__,
)
def test_what_a_value_is(ask: Callable[[Tensor, Tensor], bool], example: Any) -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 4, stride=2, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.up(x))
            return y * 2 if ask(x, y) else y * 3

    fused, twin = transfuse.fuse(made(Asking), example), made(Asking)
    for length in (4, 5, 4):
        expect_alike(fused, twin, drawn(3, 2, length))
        with torch.no_grad():
            x = drawn(3, 2, length)
            assert torch.allclose(fused(x), twin(x), atol=1e-12)
