"""``FusedConvTranspose``: it owns what is in its stages, and reads it anew at each call."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from tests.nn.beside import integers, near, same, stepped, with_integers
from transfuse import stages
from transfuse.nn import (
    FusedConvTranspose,
    FusedConvTranspose1d,
    FusedConvTranspose2d,
    FusedConvTranspose3d,
)

X = integers(2, 4, 5, 4)


def decoder(momentum: float | None = 0.1) -> tuple[FusedConvTranspose, nn.Sequential]:
    """A layer of a decoder, and torch's with the same parameters; in float64."""
    torch.manual_seed(1)
    layer = FusedConvTranspose(
        4, 8, 4, stride=2, padding=1, bias=False,
        before=[nn.LeakyReLU(0.2)],
        then=[nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(), nn.MaxPool2d(2)],
    ).double()  # fmt: skip
    conv = nn.ConvTranspose2d(4, 8, 4, stride=2, padding=1, bias=False)
    norm = nn.BatchNorm2d(8, momentum=momentum)
    theirs = nn.Sequential(nn.LeakyReLU(0.2), conv, norm, nn.ReLU(), nn.MaxPool2d(2)).double()
    conv.load_state_dict({"weight": layer.weight})
    return layer, theirs


def test_trains_as_torchs_modules_do() -> None:
    ours, theirs = decoder()
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, 0.9) for each in (ours, theirs)]
    for step in range(4):
        x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
        if step == 2:
            ours.eval(), theirs.eval()
        if step == 3:
            ours.train(), theirs.train()
        assert near(stepped(ours, x), stepped(theirs, x))
        for each in optimizers:
            each.step()
    norm = ours.then[0]
    assert norm.num_batches_tracked == theirs[2].num_batches_tracked == 3
    assert (norm.running_var - theirs[2].running_var).abs().max() <= 1e-12


@pytest.mark.parametrize(
    "make",
    [
        lambda: [nn.BatchNorm2d(4), nn.ReLU()],
        lambda: [nn.AvgPool2d(2), nn.PReLU(4)],
        lambda: [nn.Identity(), nn.GroupNorm(2, 4), nn.MaxPool2d(2, 1)],
    ],
    ids=["norm", "pool", "both"],
)
def test_modules_before_the_convolution(make: Any) -> None:
    torch.manual_seed(2)
    layer = FusedConvTranspose2d(4, 8, 3, stride=2, before=make()).double()
    conv = nn.ConvTranspose2d(4, 8, 3, stride=2).double()
    conv.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    theirs = nn.Sequential(conv, nn.Sequential(*make()).double())
    theirs[1].load_state_dict(layer.before.state_dict())

    def call(x: Tensor) -> Tensor:
        y: Tensor = conv(theirs[1](x))
        return y

    for factor in (1, 2):
        x = factor * torch.randn(3, 4, 5, 4, dtype=torch.float64)
        assert near(stepped(layer, x), stepped(theirs, x, call))
        with torch.no_grad():
            assert (layer(x) - call(x)).abs().max() <= 1e-11
    for name, tensor in theirs[1].state_dict().items():
        assert (layer.before.state_dict()[name] - tensor).abs().max() <= 1e-12


def test_keys_are_torchs() -> None:
    layer, theirs = decoder()
    assert list(layer.state_dict()) == [
        "weight",
        *(f"then.0.{name}" for name in theirs[2].state_dict()),
    ]
    assert isinstance(layer, FusedConvTranspose2d)
    assert isinstance(layer, nn.ConvTranspose2d)


def test_without_the_batch_axis() -> None:
    """As a batch of one; batch norm refuses it, as torch's does."""
    then = [nn.ReLU(), nn.GroupNorm(2, 8), nn.Softmax(1), nn.Flatten()]
    layer = with_integers(FusedConvTranspose(4, 8, (3, 3), then=then))
    assert layer(X[0]).equal(layer(X[:1])[0])
    norm, theirs = decoder()
    for each in (norm, theirs):
        with pytest.raises(ValueError, match=r"expected 4D input \(got 3D input\)"):
            each(X[0].double())
    assert norm.then[0].num_batches_tracked == 0


def test_a_refused_call_counts_no_batch() -> None:
    layer, _ = decoder()
    before = {name: each.clone() for name, each in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match="channels"):
        layer(torch.randn(2, 3, 5, 4).double())
    assert all(each.equal(before[name]) for name, each in layer.state_dict().items())


def test_attributes_are_read_at_each_call() -> None:
    x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
    ours, theirs = decoder()
    for norm in (ours.then[0], theirs[2]):
        norm.eps, norm.momentum = 0.5, 0.7
    ours.then[2].kernel_size = theirs[4].kernel_size = 3
    assert near(stepped(ours, x), stepped(theirs, x))
    for norm in (ours.then[0], theirs[2]):
        norm.eval()
        norm.weight = None
        norm.bias = nn.Parameter(torch.arange(8.0).double())
    assert near(stepped(ours, x), stepped(theirs, x))
    for norm in (ours.then[0], theirs[2]):
        norm.weight = nn.Parameter(torch.arange(-3.0, 5.0).double())
    assert near(stepped(ours, x), stepped(theirs, x))
    assert (ours.then[0].running_mean - theirs[2].running_mean).abs().max() <= 1e-12
    for norm in (ours.then[0], theirs[2]):
        norm.train()
        norm.track_running_stats = False
    assert near(stepped(ours, x), stepped(theirs, x))
    assert ours.then[0].num_batches_tracked == theirs[2].num_batches_tracked == 1
    assert (ours.then[0].running_mean - theirs[2].running_mean).abs().max() <= 1e-12
    ours.then[1] = theirs[3] = nn.Tanh()
    assert near(stepped(ours, x), stepped(theirs, x))


def test_tensors_of_stages_are_owned() -> None:
    gain, shift = nn.Parameter(integers(8)), integers(8, 1, 1, seed=1)
    layer = FusedConvTranspose(
        4, 8, (3, 3), then=[stages.scale(gain), stages.add(shift), stages.relu()]
    )
    with_integers(layer)
    assert dict(layer.named_parameters())["then.0.factor"] is gain
    assert dict(layer.named_buffers())["then.1.other"] is shift
    assert "scale(tensor[8])" in repr(layer)

    def theirs(x: Tensor) -> Tensor:
        y = F.conv_transpose2d(x, layer.weight, layer.bias)
        return F.relu(y * gain.view(-1, 1, 1) + shift)

    assert same(stepped(layer, X), stepped(layer, X, theirs))
    layer.then[1].other = shift = 2 * shift
    assert same(stepped(layer, X), stepped(layer, X, theirs))


def test_names_are_what_a_call_gives() -> None:
    layer = FusedConvTranspose(
        4, 8, (2, 2), stride=2, then=[stages.scale("gain"), stages.cat("skip"), stages.relu()]
    )
    with_integers(layer)
    skip = integers(2, 3, 10, 8)
    wide = F.conv_transpose2d(X, layer.weight, layer.bias, 2)
    for gain in (3, 2.0, integers(8, seed=4)):
        factor = gain.view(-1, 1, 1) if isinstance(gain, Tensor) else gain
        expected = F.relu(torch.cat((wide * factor, skip), 1))
        assert layer(X, gain=gain, skip=skip).equal(expected)
    for given in ({}, {"gain": 1.0}, {"gain": 1.0, "skip": skip, "more": skip}):
        with pytest.raises(TypeError, match="by name a call gives gain, skip, but got"):
            layer(X, **given)


@pytest.mark.parametrize("name", ["input", "weight", "output_size", "self"])
def test_names_of_a_call_itself_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' in .* is what a call of the module calls"):
        FusedConvTranspose(4, 8, (3, 3), then=[stages.scale(name)])


def test_names_may_be_those_of_the_modules_own_tensors() -> None:
    layer = with_integers(
        FusedConvTranspose(4, 8, (3, 3), then=[stages.add("bias"), stages.scale("factor")])
    )
    bias = integers(8, seed=3)
    expected = F.conv_transpose2d(X, layer.weight, layer.bias + bias) * 3
    assert layer(X, bias=bias, factor=3.0).equal(expected)


def test_modules_stay_what_they_are() -> None:
    norm = nn.GroupNorm(2, 8)
    layer, other = (FusedConvTranspose(4, 8, (3, 3), then=[norm]) for _ in range(2))
    assert layer.then[0] is other.then[0] is norm
    layer(X).sum().backward()
    assert norm.weight.grad is not None
    assert nn.Sequential(layer, nn.ReLU()).state_dict()["0.then.0.weight"] is not None


def test_torch_fx() -> None:
    """A trace has the public function in it, and leaves nothing behind."""
    layer, _ = decoder()
    layer.eval()
    x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
    layer.__dict__.pop("_kept")
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    targets = [node.target for node in traced.graph.nodes]
    assert targets.count(transfuse.conv_transpose) == 1
    assert traced(x).equal(layer(x))


def test_output_size() -> None:
    layer = with_integers(FusedConvTranspose(4, 8, (3, 3), 2, 1, 1, then=[nn.ReLU()]))
    for more in (0, 1):
        size = (9 + more, 7 + more)
        expected = F.conv_transpose2d(X, layer.weight, layer.bias, 2, 1, more)
        assert layer(X, output_size=size).equal(F.relu(expected))
    assert layer(X).shape == (2, 8, 10, 8)


def test_padding_in_every_form() -> None:
    for padding in ("same", ((1, 0), (2, -1)), (1, 0), 1):
        layer = with_integers(FusedConvTranspose(4, 8, (3, 3), 2, padding, then=[stages.relu()]))
        expected = transfuse.conv_transpose2d(X, layer.weight, layer.bias, 2, padding)
        assert layer(X).equal(F.relu(expected))


@pytest.mark.parametrize(
    ("arguments", "options", "kind"),
    [
        ((4, 8, (3,)), {}, FusedConvTranspose1d),
        ((4, 8, [3, 3]), {}, FusedConvTranspose2d),
        ((4, 8, 3), {"stride": (1, 2, 1)}, FusedConvTranspose3d),
        ((4, 8, 3), {"padding": ((1, 2), (0, 1))}, FusedConvTranspose2d),
        ((4, 8, 3), {"before": [nn.AvgPool1d(2)]}, FusedConvTranspose1d),
    ],
)
def test_axes_are_told_by_any_argument(arguments: Any, options: Any, kind: type) -> None:
    layer = FusedConvTranspose(*arguments, **options)
    assert type(layer) is kind
    assert layer.weight.dim() == kind.rank + 2  # type: ignore[attr-defined]
    assert len(layer.kernel_size) == kind.rank  # type: ignore[attr-defined]


def test_axes_that_nothing_tells_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel_size=4 does not tell .* such as \(4, 4\)"):
        FusedConvTranspose(4, 8, 4, then=[nn.ReLU()])
    with pytest.raises(ValueError, match=r"2 by kernel_size=\(3, 3\), 3 by stride=\(1, 1, 1\)"):
        FusedConvTranspose(4, 8, (3, 3), (1, 1, 1))
    with pytest.raises(ValueError, match=r"1, 2 or 3 spatial axes, but got 4 by kernel_size"):
        FusedConvTranspose(4, 8, (3, 3, 3, 3))


def test_what_is_no_stage_is_refused() -> None:
    with pytest.raises(TypeError, match="then must be a list of stages and modules, not str"):
        FusedConvTranspose(4, 8, (3, 3), then="relu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="before must be a list of stages and modules, not ReLU"):
        FusedConvTranspose(4, 8, (3, 3), before=nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"then takes stages and modules .*, not Function"):
        FusedConvTranspose(4, 8, (3, 3), then=[stages.relu])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="stands behind flatten"):
        FusedConvTranspose(4, 8, (3, 3), then=[nn.Flatten(), nn.BatchNorm2d(8)])
    with pytest.raises(ValueError, match="exactly one transposed convolution"):
        FusedConvTranspose(4, 8, (3, 3), then=[stages.conv_transpose(2)])


def test_a_norm_of_other_channels_is_named() -> None:
    layer = FusedConvTranspose(4, 8, (3, 3), then=[nn.GroupNorm(2, 6)])
    with pytest.raises(RuntimeError, match=r"group_norm.weight to hold one value for each of 8"):
        layer(X)


def test_torch_function_sees_one_call() -> None:
    class Seen(Tensor):
        functions: list[Any] = []  # noqa: RUF012 one list for all of them

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            cls.functions.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    layer = FusedConvTranspose(
        4, 8, (3, 3), before=[nn.ReLU()], then=[nn.GroupNorm(2, 8), stages.scale("gain")]
    )
    y = layer(X.as_subclass(Seen), gain=2.0)
    assert Seen.functions.count(transfuse.conv_transpose) == 1
    assert y.as_subclass(Tensor).equal(layer(X, gain=2.0))


def test_without_gradients_a_fused_backend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", "cpu")
    layer, theirs = decoder()
    x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(2):
            assert (layer(x) - theirs(x)).abs().max() <= 1e-11
    assert (layer.then[0].running_mean - theirs[2].running_mean).abs().max() <= 1e-12


def test_norms_may_stay_float32_beside_half() -> None:
    layer = FusedConvTranspose(
        4, 8, (3, 3), then=[nn.BatchNorm2d(8), nn.ReLU()], dtype=torch.bfloat16
    )
    y = layer(X.bfloat16())
    assert y.dtype == torch.bfloat16
    assert layer.then[0].running_mean.dtype == torch.float32
