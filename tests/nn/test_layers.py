"""``transfuse.nn.ConvTranspose1d`` to ``3d`` in place of torch's: only ``forward`` is another."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from tests.nn.beside import integers, same, stepped, with_integers
from transfuse import nn

RANKS = (1, 2, 3)
OURS = {rank: getattr(nn, f"ConvTranspose{rank}d") for rank in RANKS}
THEIRS = {rank: getattr(torch.nn, f"ConvTranspose{rank}d") for rank in RANKS}
LAZY = {rank: getattr(nn, f"LazyConvTranspose{rank}d") for rank in RANKS}
LAZY_THEIRS = {rank: getattr(torch.nn, f"LazyConvTranspose{rank}d") for rank in RANKS}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "strided": {"stride": 2, "padding": 1, "output_padding": 1},
    "grouped": {"groups": 2, "dilation": 2, "stride": 3},
}


def pair(rank: int, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Ours and torch's, with the same integers."""
    ours = with_integers(OURS[rank](4, 6, 3, **options))
    theirs = THEIRS[rank](4, 6, 3, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def inputs(rank: int, batch: tuple[int, ...] = (2,)) -> Tensor:
    return integers(*batch, 4, *(5, 4, 3)[:rank])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(name: str, rank: int) -> None:
    ours, theirs = pair(rank, **OPTIONS[name])
    for x in (inputs(rank), inputs(rank, batch=())):
        assert same(stepped(ours, x), stepped(theirs, x))
        with torch.no_grad():
            assert ours(x).equal(theirs(x))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("kinds", [(OURS, THEIRS), (LAZY, LAZY_THEIRS)], ids=["plain", "lazy"])
def test_the_constructor_is_torchs(kinds: Any, rank: int) -> None:
    """Names, order, kinds and defaults; types are wider."""
    ours, theirs = (inspect.signature(each[rank]).parameters.values() for each in kinds)
    assert [p.replace(annotation=p.empty) for p in ours] == [
        p.replace(annotation=p.empty) for p in theirs
    ]
    assert issubclass(kinds[0][rank], kinds[1][rank])


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", OPTIONS)
def test_initial_values_state_and_print_are_torchs(name: str, rank: int) -> None:
    torch.manual_seed(3)
    ours = OURS[rank](4, 6, 3, **OPTIONS[name])
    torch.manual_seed(3)
    theirs = THEIRS[rank](4, 6, 3, **OPTIONS[name])
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.equal(other)
    for each in (ours, theirs):
        torch.manual_seed(4)
        each.reset_parameters()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("rank", RANKS)
def test_output_size_stands_in_place_of_output_padding(rank: int) -> None:
    ours, theirs = pair(rank, stride=3, padding=1, output_padding=1)
    x = inputs(rank)
    for more in range(3):
        spatial = [(n - 1) * 3 - 2 + 3 + more for n in x.shape[2:]]
        for size in (spatial, torch.Size(spatial), (2, 6, *spatial)):
            assert ours(x, size).equal(theirs(x, list(size)))
            assert ours(x, output_size=size).shape[2:] == tuple(spatial)
    for wrong in ([100] * rank, [7] * (rank + 3)):
        for each in (ours, theirs):
            with pytest.raises(ValueError, match=r"output.size"):
                each(x, wrong)


def test_other_forms_of_padding() -> None:
    """As the function takes them; torch's constructor would take them apart."""
    x = inputs(2)
    for padding in ("same", "same_lower", ((1, 0), (0, 2)), [(1, -1), (0, 0)]):
        layer = with_integers(nn.ConvTranspose2d(4, 6, 3, 2, padding))
        y = layer(x)
        wide = torch.nn.functional.conv_transpose2d(x, layer.weight, layer.bias, 2)
        assert y.shape[0] == 2
        if padding == "same":
            assert y.equal(wide[:, :, :-1, :-1])
        assert "padding=" in repr(layer)
    with pytest.raises(TypeError, match="padding must be an integer"):
        nn.ConvTranspose2d(4, 6, 3, 2, "valid")
    with pytest.raises(ValueError, match="padding mode"):
        nn.ConvTranspose2d(4, 6, 3, padding_mode="reflect")


@pytest.mark.parametrize("rank", RANKS)
def test_lazy(rank: int) -> None:
    ours, theirs = LAZY[rank](6, 3, stride=2), LAZY_THEIRS[rank](6, 3, stride=2)
    assert isinstance(ours, OURS[rank])
    x = inputs(rank)
    for each in (ours, theirs):
        torch.manual_seed(5)
        assert each(x).shape[1] == 6
    assert type(ours) is OURS[rank]
    assert type(theirs) is THEIRS[rank]
    assert repr(ours) == repr(theirs)
    assert ours.weight.equal(theirs.weight)
    with_integers(theirs)
    fresh = LAZY[rank](6, 3, stride=2)
    fresh.load_state_dict(theirs.state_dict())
    assert fresh(x).equal(theirs(x))


@pytest.mark.parametrize("rank", RANKS)
def test_without_gradients_a_fused_backend_runs(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", "cpu")
    ours, theirs = pair(rank, stride=2)
    with torch.no_grad():
        assert ours(inputs(rank)).equal(theirs(inputs(rank)))


def test_a_call_gives_nothing_else_by_name() -> None:
    layer, _ = pair(2)
    with pytest.raises(TypeError, match="ConvTranspose2d: by name a call gives nothing, but got s"):
        layer(inputs(2), skip=inputs(2))
    with pytest.raises(RuntimeError, match="channels"):
        layer(integers(1, 3, 4, 4))


class Seen(Tensor):
    """A tensor that tells which functions it meets."""

    functions: list[Any] = []  # noqa: RUF012 one list for all of them

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        cls.functions.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_torch_function_sees_the_public_function() -> None:
    layer, _ = pair(2, stride=2)
    x = inputs(2)
    Seen.functions.clear()
    y = layer(x.as_subclass(Seen))
    assert transfuse.conv_transpose2d in Seen.functions
    assert y.as_subclass(Tensor).equal(layer(x))


def test_autocast_casts_as_torchs_layers_do() -> None:
    ours, theirs = pair(2, stride=2)
    with torch.autocast("cpu", torch.bfloat16):
        a, b = ours(inputs(2)), theirs(inputs(2))
    assert a.dtype == b.dtype == torch.bfloat16
    assert a.equal(b)


def test_hooks_run() -> None:
    layer, _ = pair(1)
    seen: list[str] = []
    layer.register_forward_pre_hook(lambda *_: seen.append("before"))
    layer.register_forward_hook(lambda *_: seen.append("after"))
    layer(inputs(1))
    assert seen == ["before", "after"]
