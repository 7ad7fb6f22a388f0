"""Published models, fused: the same numbers, as many fused calls as transposed convolutions."""

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import transfuse
from tests.examples.comparing import close, compare, trained
from tests.examples.counting import Counted
from transfuse.bench import whole
from transfuse.bench.models import MODELS, drawn, pix2pix, seeded, wgan_gp
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.whole import Whole
from transfuse.fusing import forwards

UNFUSED: dict[str, str] = {}
"""Models that have a transposed convolution left as it was, and a part of the reason."""
SLOW = ("bigvgan", "fcn-8s", "nnunet", "pix2pix", "unet", "vnet")
ALL = [pytest.param(n, marks=pytest.mark.long if n in SLOW else ()) for n in MODELS]
FP32 = PRECISIONS["fp32"]


@pytest.fixture(autouse=True)
def _nothing_falls_back(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A fused call that runs torch's operations instead warns; here none may."""
    with caplog.at_level(logging.WARNING, "transfuse"):
        yield
    assert not [each.getMessage() for each in caplog.get_records("call")]


def small(name: str) -> nn.Module:
    return seeded(MODELS[name].small)


def inputs(name: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return drawn(MODELS[name].tiny, 0, dtype)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ALL)
def test_fused_it_computes_what_it_did(name, training):
    compare(lambda: small(name), inputs(name), training)


@pytest.mark.parametrize("name", ["unet", "encodec", "hifi-gan", "stylegan2", "vae"])
def test_without_example_inputs(name):
    compare(lambda: small(name), inputs(name), training=True, given=False)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", ALL)
def test_every_transposed_convolution_is_fused(name, training):
    with Counted() as counted:
        small(name).double().train(training)(*inputs(name))
    fused = transfuse.fuse(small(name).double().train(training), tuple(inputs(name)))
    fused(*inputs(name))
    rows = fused.explain().rows
    assert len(rows) == counted.convolutions
    left = [row for row in rows if not row.fused]
    if name in UNFUSED:
        assert left
        assert all(UNFUSED[name] in row.why for row in left)
    else:
        assert not left, [(row.name, row.why) for row in left]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "sam" else pytest.mark.long) for n in MODELS]
)
def test_in_float32_it_is_as_right_as_float32_is(name, training):
    model = MODELS[name]
    with torch.no_grad():
        work, _ = whole.work(Whole(name, model.small, model.tiny), FP32, "cpu", 0, training)
        fused = transfuse.fuse(work.model, work.x)
        runner = work.runner(fused, fused)
        judged = whole.oracle(work, FP32).judge(runner.collect(runner.run(runner.adapt(work.x))))
    assert judged.ok, judged


@pytest.mark.parametrize("name", ["hifi-gan", "bigvgan", "encodec"])
def test_vocoders_take_any_length_and_are_captured_once(name, monkeypatch):
    plain, fused = small(name).eval(), transfuse.fuse(small(name).eval())
    [(_, bands, length)] = MODELS[name].tiny
    captures = []
    real = forwards.capture
    monkeypatch.setattr(forwards, "capture", lambda *given: captures.append(1) or real(*given))
    with torch.no_grad():
        fused(torch.zeros(2, bands, length))
        captures.clear()
        for more in range(1, 6):
            x = torch.randn(1 + more % 2, bands, length + more)
            torch.testing.assert_close(fused(x), plain(x))
    assert not captures
    fused.explain()


@pytest.mark.parametrize("name", ["dcgan", "hifi-gan", "unet"])
def test_weights_go_from_one_to_the_other(name):
    plain, fused = small(name).double().eval(), transfuse.fuse(small(name).double().eval())
    other = seeded(MODELS[name].small, 9).double().eval()
    fused.load_state_dict(other.state_dict())
    with torch.no_grad():
        close([fused(*inputs(name))], [other(*inputs(name))], "loaded")
    plain.load_state_dict(fused.state_dict())
    with torch.no_grad():
        close([plain(*inputs(name))], [other(*inputs(name))], "given back")


def test_unfused_is_the_model_again():
    for name in ("pix2pix", "hifi-gan"):
        model = small(name)
        keys = {path: set(vars(module)) for path, module in model.named_modules()}
        fused = transfuse.unfuse(transfuse.fuse(model, tuple(inputs(name, torch.float32))))
        assert {path: set(vars(module)) for path, module in fused.named_modules()} == keys


def test_pix2pix_with_instance_norm():
    make = lambda: seeded(lambda: pix2pix.UnetGenerator(2, 5, norm=nn.InstanceNorm2d))  # noqa: E731
    for training in (False, True):
        compare(make, drawn(((2, 3, 32, 32),), 0, torch.float64), training)


def test_pix2pix_drops_out_what_it_did_before():
    """The same seed, the same mask: nothing draws random numbers in another order."""
    plain, fused = small("pix2pix").double(), transfuse.fuse(small("pix2pix").double())
    ours, theirs = trained(fused, inputs("pix2pix"), 3)[0], trained(plain, inputs("pix2pix"), 3)[0]
    close(ours, theirs, "seed 3")
    other = trained(plain, inputs("pix2pix"), 4)[0]
    assert not torch.allclose(theirs[0], other[0])


def penalised(wgan: nn.Module) -> list[torch.Tensor]:
    """The gradients of the critic's loss with its penalty, by every parameter of both networks."""
    noise, real = drawn(((3, 5), (3, 3, 32, 32)), 0, torch.float64)
    fake = wgan.generator(noise)
    share = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
    penalty = wgan_gp.gradient_penalty(wgan.critic, real, fake, share)
    loss = wgan.critic(fake).mean() - wgan.critic(real).mean() + 10 * penalty
    return list(torch.autograd.grad(loss, list(wgan.parameters()), materialize_grads=True))


def path_length(wgan: nn.Module) -> list[torch.Tensor]:
    """How fast images change with their noise, and the gradients of that: twice through them."""
    noise, towards = drawn(((3, 5), (3, 3, 32, 32)), 1, torch.float64)
    noise.requires_grad_()
    image = wgan.generator(noise)
    [slope] = torch.autograd.grad((image * towards).sum(), noise, create_graph=True)
    loss = slope.square().sum().sqrt()
    return list(torch.autograd.grad(loss, list(wgan.generator.parameters()), allow_unused=False))


@pytest.mark.parametrize("second_order", [penalised, path_length])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_wgan_gp_to_the_second_order(second_order, training):
    plain = small("wgan-gp").double().train(training)
    fused = transfuse.fuse(small("wgan-gp").double().train(training))
    expected = second_order(plain)
    assert any(each.any() for each in expected)
    close(second_order(fused), expected, second_order.__name__)


def test_stylegan2_with_other_batches():
    """A group for each sample: their number is the batch's, anew in each call."""
    plain = small("stylegan2").double().eval()
    fused = transfuse.fuse(small("stylegan2").double().eval())
    for batch in (1, 2, 5):
        x = drawn(((batch, 6, 5, 4), (batch, 5), (batch, 1, 10, 8)), batch, torch.float64)
        close([fused(*x)], [plain(*x)], f"batch {batch}")


def test_u_nets_with_sizes_that_need_padding_and_with_such_that_do_not():
    plain, fused = small("unet").double().eval(), transfuse.fuse(small("unet").double().eval())
    with torch.no_grad():
        for size in ((32, 32), (33, 40), (32, 48), (35, 37), (32, 32)):
            [x] = drawn(((1, 3, *size),), 0, torch.float64)
            close([fused(x)], [plain(x)], str(size))
