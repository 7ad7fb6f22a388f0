"""Models of which only a call tells more, and calls of which there are ever new kinds."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from tests.fusing import models
from tests.fusing.alike import NEAR, drawn, expect_alike, made
from transfuse.fusing import forwards
from transfuse.fusing.forwards import MOST
from transfuse.fusing.tracer import Tracer

X = drawn(2, 3, 4, 5)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)


class AnyNumber(Base):
    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        y = self.up(args[0])
        for each in args[1:]:
            y = y + each
        return y.relu() * kwargs.get("gain", 1)


def test_arguments_without_names() -> None:
    fused, twin = transfuse.fuse(made(AnyNumber)), made(AnyNumber)
    (row,) = fused.explain().rows
    assert row.pending
    assert "IndexError" in row.why
    skip = drawn(2, 4, 8, 10)
    for args, kwargs in (((X,), {}), ((X, skip), {}), ((X, skip, skip), {"gain": 2})):
        expect_alike(fused, twin, *args, **kwargs)
    assert all(row.fused for row in fused.explain().rows)


class Listed(Base):
    def forward(self, given: Any) -> Tensor:
        if isinstance(given, Tensor):
            return self.up(given).relu()
        return self.up(given["x"] if isinstance(given, dict) else given[0]).tanh()


def test_a_tensor_and_a_container_with_one_are_told_apart() -> None:
    fused, twin = transfuse.fuse(made(Listed)), made(Listed)
    for given in (X, [X], {"x": X}, (X,), X):
        expect_alike(fused, twin, given)


class Result:
    def __init__(self, y: Tensor) -> None:
        self.y = y


class Returns(Base):
    def forward(self, x: Tensor) -> Result:
        return Result(self.up(x).relu())


def test_an_object_that_no_graph_holds_is_returned() -> None:
    fused, twin = transfuse.fuse(made(Returns)), made(Returns)
    (row,) = fused.explain().rows
    assert row.fused
    assert "returns a Result, which no graph holds" in row.why
    assert torch.allclose(fused(X).y, twin(X).y, atol=1e-12)


class Prints(Base):
    def forward(self, x: Tensor) -> Tensor:
        print(x.shape)
        return self.up(x).relu()


def test_a_forward_that_prints_does_so_in_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    fused = transfuse.fuse(made(Prints))
    assert "prints" in fused.explain().rows[0].why
    fused(X), fused(X)
    assert capsys.readouterr().out == f"{X.shape}\n" * 2


class Cut(Base):
    """Every size makes another number in Python."""

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x)[..., : int(x.shape[-1] * 1.5)].relu()


def test_captures_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    captured = []
    monkeypatch.setattr(
        forwards, "capture", lambda *a, kept=forwards.capture: captured.append(a) or kept(*a)
    )
    fused, twin = transfuse.fuse(made(Cut)), made(Cut)
    with caplog.at_level(logging.WARNING, "transfuse"):
        for size in range(1, MOST + 9):
            expect_alike(fused, twin, drawn(1, 3, 2, size))
    assert len(fused.forward.versions) == MOST
    assert "its parts are fused by themselves" in caplog.text
    assert isinstance(fused.up.forward, forwards.Forward)
    captured.clear()
    for size in range(1, MOST + 9):
        expect_alike(fused, twin, drawn(1, 3, 2, size))
    assert not captured


def test_a_new_size_is_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to be left whole is known from the sizes before."""
    fused, twin = transfuse.fuse(made(models.UNet)), made(models.UNet)
    expect_alike(fused, twin, drawn(1, 2, 8, 8))
    attempts = []
    run = Tracer.run
    monkeypatch.setattr(
        Tracer, "run", lambda self, *given: attempts.append(given) or run(self, *given)
    )
    for sizes in ((2, 2, 12, 8), (1, 2, 16, 4)):
        expect_alike(fused, twin, drawn(*sizes))
    assert len(attempts) == 2


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [models.decoder, Cut])
def test_traced_by_torch_jit_before_any_call(make: Any) -> None:
    fused, twin = transfuse.fuse(made(make, False)), made(make, False)
    traced = torch.jit.trace(fused, X)
    assert torch.allclose(traced(X), twin(X), atol=1e-12)
    expect_alike(fused, twin, X)
    assert torch.allclose(torch.jit.trace(fused, X)(X), twin(X), atol=1e-12)


class Plain(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.up(x).relu()


def test_what_is_wrong_with_a_call_is_said_in_torchs_words_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fused = transfuse.fuse(made(Plain))
    with pytest.raises(RuntimeError, match="Input type") as caught:
        fused(X.float())
    assert caught.value.__context__ is None
    assert not capsys.readouterr().err


def upsampled(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv_transpose1d(x, weight, stride=2)


class Generated(nn.Module):
    """A weight for each sample, in a comprehension and by another function."""

    def __init__(self, helped: bool = False) -> None:
        super().__init__()
        self.weights = nn.Linear(2, 12)
        self.helped = helped

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x.mean(2)).view(-1, 2, 3, 2)
        if len(x) > 1 and self.helped:
            return torch.relu(upsampled(x, weights[0]))
        return torch.cat([self.one(x[i : i + 1], weights[i]) for i in range(len(x))])

    def one(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.relu(upsampled(x, weight))


@pytest.mark.parametrize("helped", [False, True])
def test_functions_that_a_forward_reaches_wait_for_the_first_call(helped: bool) -> None:
    fused, twin = transfuse.fuse(made(partial(Generated, helped))), made(partial(Generated, helped))
    for samples in (2, 3, 2):
        expect_alike(fused, twin, drawn(samples, 2, 5))
    assert all(row.fused for row in fused.explain().rows)


class Coder(nn.Module):
    """Its parts are called by themselves, too, as those of autoencoders are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(2, 2, 2, stride=2)
        self.decoder = nn.Sequential(nn.ConvTranspose1d(2, 2, 2, stride=2), nn.Tanh())

    def decode(self, code: Tensor) -> Tensor:
        return self.decoder(code)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encoder(x))


class Unfinished(Coder):
    """For calls of its parts alone."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("decode is what is called")


@pytest.mark.parametrize("make", [Coder, Unfinished])
def test_a_part_called_by_itself_is_fused(make: Callable[[], Coder]) -> None:
    fused, twin = transfuse.fuse(made(make)), made(make)
    code = drawn(1, 2, 5)
    assert isinstance(fused, Coder)
    assert (fused.decode(code) - twin.decode(code)).abs().max() < NEAR
    held = vars(fused.decoder)["forward"]
    assert [site.operations for version in held.versions for site in version.sites] == [
        ("conv_transpose1d", "tanh")
    ]
    assert transfuse.fusing.explain(fused).rows[0].fused
    transfuse.unfuse(fused)
    assert not any("forward" in vars(module) for module in fused.modules())


def test_a_part_called_by_itself_may_get_a_hook() -> None:
    """Then the whole model calls it, and its forward is made once more."""
    fused, twin = transfuse.fuse(made(Coder)), made(Coder)
    for model in (fused, twin):
        model.decoder.register_forward_hook(lambda module, args, y: 2 * y)
    expect_alike(fused, twin, drawn(1, 2, 6))
    assert [row.operations for row in transfuse.fusing.explain(fused).rows] == [
        ("conv_transpose1d", "tanh")
    ]


def test_layers_in_a_list_are_fused_one_by_one() -> None:
    """The list has no forward that could be."""

    class Found:
        def __init__(self, y: Tensor) -> None:
            self.y = y

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ups = nn.ModuleList(
                nn.Sequential(nn.ConvTranspose1d(2, 2, 2, stride=2), nn.ReLU()) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Found:
            for up in self.ups:
                x = up(x)
            return Found(x)

    fused, twin, x = transfuse.fuse(made(Listed)), made(Listed), drawn(1, 2, 5)
    assert (fused(x).y - twin(x).y).abs().max() < NEAR
    assert [row.fused for row in transfuse.fusing.explain(fused).rows] == [True, True]
