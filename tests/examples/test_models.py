"""The models by themselves: sizes as published, weights by seed, numbers of convolutions."""

import pytest
import torch

from tests.examples.counting import Counted
from transfuse.bench.models import MODELS, bigvgan, drawn, pix2pix, seeded

RESULTS = {
    "dcgan": (64, 3, 64, 64),
    "wgan-gp": (64, 1),
    "stylegan2": (16, 256, 128, 128),
    "unet": (4, 1, 512, 512),
    "nnunet": (2, 3, 128, 128, 128),
    "vnet": (2, 2, 64, 128, 128),
    "hifi-gan": (16, 1, 32 * 256),
    "bigvgan": (16, 1, 32 * 256),
    "encodec": (16, 1, 75 * 320),
    "fsrcnn": (16, 1, 768, 768),
    "espcn": (16, 1, 768, 768),
    "vae": (144, 3, 64, 64),
    "vq-vae": (128, 3, 128, 128),
    "fcn-8s": (4, 21, 512, 512),
    "sam": (16, 4, 256, 256),
    "mask-rcnn": (100, 91, 28, 28),
    "dpt": (8, 1, 518, 518),
    "pix2pix": (16, 3, 256, 256),
}
"""Of each on the inputs for a GPU."""


def numbers(model):
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_full_models_have_their_sizes_and_convolutions(name, place):
    model = MODELS[name]
    with torch.device("meta"):
        made = model.make().eval()
        with Counted() as counted:
            y = made(*(torch.empty(shape) for shape in getattr(model, place)))
    assert counted.convolutions == model.convolutions
    if place == "gpu":
        assert tuple(y.shape) == RESULTS[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("dcgan", 3_576_704),
        ("unet", 31_037_633),
        ("pix2pix", 54.414e6),
        ("hifi-gan", 13.92e6),
        ("bigvgan", 14.01e6),
        ("nnunet", 31.2e6),
        ("vnet", 45.6e6),
        ("mask-rcnn", 2_646_107),
    ],
)
def test_numbers_of_parameters_are_those_published(name, published):
    with torch.device("meta"):
        found = numbers(MODELS[name].make())
    # A figure in millions is rounded, and weight norm adds its lengths: 0.1% at most.
    assert found == published if isinstance(published, int) else abs(found / published - 1) < 2e-3


def test_fsrcnn_has_the_12464_weights_of_its_paper():
    kernels = [each for each in MODELS["fsrcnn"].make().parameters() if each.dim() == 4]
    assert sum(each.numel() for each in kernels) == 12_464


def test_the_large_bigvgan_has_112_million():
    with torch.device("meta"):
        large = bigvgan.BigVGAN(channels=1536, rates=(4, 4, 2, 2, 2, 2), kernels=(8, 8, 4, 4, 4, 4))
    assert abs(numbers(large) / 112.4e6 - 1) < 2e-3


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_inputs_are_by_seed(name):
    model = MODELS[name]
    state = torch.random.get_rng_state()
    one, same, other = (seeded(model.small, seed).eval() for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    inputs = drawn(model.tiny, 3, torch.float32)
    assert all(map(torch.equal, inputs, drawn(model.tiny, 3, torch.float32)))
    with torch.no_grad():
        y = one(*inputs)
        assert y.isfinite().all()
        assert y.std() > 0
        assert torch.equal(y, same(*inputs))
        assert not torch.equal(y, other(*inputs))


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_and_input_has_a_gradient(name):
    model = MODELS[name]
    small = seeded(model.small).double()
    inputs = [x.requires_grad_() for x in drawn(model.tiny, 0, torch.float64)]
    y = small(*inputs)
    loss = sum(each.square().sum() for each in (y if isinstance(y, list) else [y]))
    loss.backward()
    for what in [*inputs, *small.parameters()]:
        assert what.grad is not None
        assert what.grad.isfinite().all()


def test_pix2pix_with_instance_norm():
    made = seeded(lambda: pix2pix.UnetGenerator(2, 6, norm=torch.nn.InstanceNorm2d)).eval()
    assert made(*drawn(MODELS["pix2pix"].tiny, 0, torch.float32)).shape == (2, 3, 64, 64)


@pytest.mark.parametrize("name", ["hifi-gan", "bigvgan", "encodec"])
def test_vocoders_take_any_length(name):
    model = MODELS[name]
    small = seeded(model.small).eval()
    [(batch, bands, length)] = model.tiny
    first = small(torch.zeros(batch, bands, length)).shape[-1]
    assert small(torch.zeros(1, bands, 3 * length)).shape == (1, 1, 3 * first)
