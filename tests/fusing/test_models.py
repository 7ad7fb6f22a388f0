"""Fused models give what they gave before: outputs, gradients, running statistics."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

import transfuse
from tests.fusing import models
from tests.fusing.alike import check, drawn, expect_alike, made


def old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


def test_sequential() -> None:
    check(models.decoder, drawn(2, 3, 4, 5), sites=2)


def test_functions_methods_and_operators() -> None:
    check(models.FreeCode, drawn(2, 3, 4, 5), sites=1)


@pytest.mark.parametrize("size", [(8, 12), (9, 11)], ids=str)
def test_unet_that_compares_shapes(size: tuple[int, int]) -> None:
    check(models.UNet, drawn(2, 2, *size), sites=2)


@pytest.mark.parametrize("norm", [models.weight_normed, old_weight_norm])
def test_weights_that_are_computed(norm: object) -> None:
    check(partial(models.Vocoder, norm), drawn(2, 4, 10), sites=2)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_weights_whose_computation_moves_buffers(norm: object) -> None:
    def make() -> nn.Module:
        model = models.Vocoder(norm)
        for _ in range(8):  # or else the norm is one of random vectors, and may be near 0
            model(torch.randn(1, 4, 8))
        return model

    check(make, drawn(2, 4, 10), sites=2)


def test_result_used_twice_dropout_and_nested_outputs() -> None:
    check(models.Residual, drawn(2, 2, 5), sites=1)


def test_shared_module() -> None:
    check(models.Shared, drawn(2, 2, 3, 3), sites=4)


def test_memory_under_two_names() -> None:
    check(models.InPlace, drawn(2, 2, 5), sites=1)


def test_numbers_drawn_in_each_call() -> None:
    check(models.Noise, drawn(2, 2, 5), sites=1)
    fused = transfuse.fuse(made(models.Noise))
    x = drawn(2, 2, 5)
    assert not torch.equal(fused(x), fused(x))


def test_sizes_in_python() -> None:
    check(models.Sized, drawn(2, 2, 3, 4), sites=1)


def test_values_that_decide() -> None:
    """Around and inside: what is below is fused by itself, and told so."""
    check(models.ByData, drawn(2, 2, 3, 4), sites=2)
    rows = transfuse.fuse(made(models.ByData)).explain().rows
    assert [row.name for row in rows] == ["outer.0", "inner.up"]
    assert [row.chain.split(" -> ")[-1] for row in rows] == ["relu", "conv_transpose2d(+ bias)"]
    for row in rows:
        assert "models.py:" in row.why
        assert "asks in Python for the values of a tensor" in row.why


def test_graph_around_a_forward_that_is_none() -> None:
    check(models.Around, drawn(2, 2, 3, 4), sites=2)


def test_arguments_that_are_no_tensors() -> None:
    model, twin = made(models.Optional_), made(models.Optional_)
    fused = transfuse.fuse(model)
    x, skip = drawn(1, 2, 3, 3), drawn(1, 2, 6, 6, seed=1)
    for _ in range(2):
        expect_alike(fused, twin, x)
        expect_alike(fused, twin, x, None)
        expect_alike(fused, twin, x, skip)
        expect_alike(fused, twin, x, skip=skip, scale=0.5)
        expect_alike(fused, twin, x, scale=0.25, act="tanh")
        expect_alike(fused, twin, x=x, act="tanh")


def test_other_numbers_of_axes() -> None:
    """Without a batch axis; and what a norm refuses, it refuses in its own words."""
    fused = transfuse.fuse(made(models.FreeCode))
    expect_alike(fused, made(models.FreeCode), drawn(3, 4, 5))
    with pytest.raises(ValueError, match=r"expected 4D input \(got 3D input\)"):
        transfuse.fuse(made(models.decoder))(drawn(3, 4, 5))


@pytest.mark.parametrize("length", [5, 9, 16])
@pytest.mark.parametrize("norm", [models.weight_normed, old_weight_norm])
def test_lengths_need_no_capture(norm: object, length: int) -> None:
    """A version serves all sizes where Python asked for none."""
    make = partial(models.Vocoder, norm)
    fused, twin = transfuse.fuse(made(make)), made(make)
    fused(drawn(1, 4, 7))
    versions = list(fused.forward.versions)
    expect_alike(fused, twin, drawn(2, 4, length))
    assert fused.forward.versions == versions
