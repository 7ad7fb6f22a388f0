"""A fused model is the model: classes, tensors, hooks, copies; and what changes later is seen."""

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transfuse
from tests.fusing import models
from tests.fusing.alike import check, drawn, expect_alike, made
from transfuse.fusing.forwards import MOST, Forward


def fused_calls(model: nn.Module) -> list[str]:
    return [row.chain for row in transfuse.fusing.explain(model).rows if row.chain]


class Alpha(nn.Module):
    """Reads a number, a flag, a list and a function of itself; one of its class."""

    beta = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)
        self.alpha = 0.5
        self.twice = False
        self.terms = [1.0, 2.0]
        self.act = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x) * self.alpha) + self.beta
        for term in self.terms:
            y = y + term
        return 2 * y if self.twice else y


X = drawn(2, 2, 5)


def test_classes_tensors_and_keys_are_the_models() -> None:
    model = made(models.UNet)
    fused = transfuse.fuse(model)
    assert fused is not model
    assert "forward" not in vars(model)
    assert type(fused) is models.UNet
    assert all(type(a) is type(b) for a, b in zip(fused.modules(), model.modules(), strict=True))
    ours, theirs = dict(fused.state_dict(keep_vars=True)), model.state_dict(keep_vars=True)
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is tensor for name, tensor in theirs.items())


def test_in_place() -> None:
    model, twin = made(models.decoder), made(models.decoder)
    assert transfuse.fuse(model, inplace=True) is model
    assert fused_calls(model)
    expect_alike(model, twin, drawn(1, 3, 4, 4))


def test_unfuse_leaves_no_trace() -> None:
    for make in (models.UNet, models.ByData, models.Vocoder):
        model, untouched = made(make), made(make)
        x = drawn(1, *{models.UNet: (2, 8, 8), models.ByData: (2, 4, 4)}.get(make, (4, 8)))
        before = {name: dict(vars(module)) for name, module in model.named_modules()}
        fused = transfuse.fuse(model, inplace=True)
        expect_alike(fused, untouched, x)
        assert transfuse.unfuse(fused) is model
        for name, module in model.named_modules():
            assert vars(module).keys() == before[name].keys()
            for key, value in vars(module).items():
                assert value is before[name][key], (name, key)


def test_forward_of_an_instance_is_given_back() -> None:
    model = made(Alpha)
    own = model.forward = lambda x: torch.tanh(model.up(x))
    wanted = model(X)
    transfuse.fuse(model, inplace=True)
    assert fused_calls(model) == ["conv_transpose1d(+ bias) -> tanh"]
    assert torch.allclose(model(X), wanted, atol=1e-12)
    assert transfuse.unfuse(model).forward is own


def test_fused_again_is_fused_once() -> None:
    once = transfuse.fuse(made(models.decoder))
    again = transfuse.fuse(once)
    assert fused_calls(again) == fused_calls(once)
    assert isinstance(vars(once)["forward"], Forward)  # which was left alone
    assert not isinstance(vars(again)["forward"].own, Forward)
    expect_alike(again, made(models.decoder), drawn(1, 3, 4, 4))
    assert "forward" not in vars(transfuse.unfuse(again))


def test_part_of_a_larger_model() -> None:
    part = transfuse.fuse(made(models.decoder))
    model = nn.Sequential(part, nn.Sigmoid())
    twin = nn.Sequential(made(models.decoder), nn.Sigmoid())
    expect_alike(model, twin, drawn(1, 3, 4, 4))
    whole = transfuse.fuse(model)
    assert fused_calls(whole)[-1].endswith("tanh -> sigmoid")
    expect_alike(whole, twin, drawn(1, 3, 4, 4))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", ["", "up", "act"])
def test_hooks_run(at: str, after: bool) -> None:
    """On the model itself, on the convolution, and on what would be fused to it."""

    def make() -> nn.Module:
        return nn.Sequential(nn.ConvTranspose1d(2, 2, 2, stride=2), nn.Tanh(), nn.ReLU())

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        ran.append(type(module).__name__)
        return output * 2

    ran: list[str] = []
    name = {"": "", "up": "0", "act": "1"}[at]
    model, twin = made(make), made(make)
    twin.get_submodule(name).register_forward_hook(hook)
    if not after:
        model.get_submodule(name).register_forward_hook(hook)
    fused = transfuse.fuse(model)
    if after:
        expect_alike(fused, made(make), X)
        handle = fused.get_submodule(name).register_forward_hook(hook)
    ran.clear()
    fused(X)
    assert len(ran) == 1
    expect_alike(fused, twin, X)
    if name:
        assert "has forward hooks" in str(fused.explain()) or at == "act"
    if after:
        handle.remove()
        expect_alike(fused, made(make), X)
        assert fused_calls(fused) == ["conv_transpose1d(+ bias) -> tanh -> relu"]


def test_hooks_for_all_modules_run() -> None:
    fused, twin = transfuse.fuse(made(models.decoder)), made(models.decoder)
    ran: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: ran.append(m))
    try:
        twin(drawn(1, 3, 4, 4))
        wanted = len(ran)
        ran.clear()
        fused(drawn(1, 3, 4, 4))
        assert len(ran) == wanted
    finally:
        handle.remove()


def test_backward_hooks_run() -> None:
    fused = transfuse.fuse(made(models.decoder))
    seen: list[Any] = []
    fused[1].register_full_backward_hook(lambda *given: seen.append(given[2][0].shape))
    fused(drawn(1, 3, 4, 4)).sum().backward()
    assert seen == [torch.Size([1, 6, 8, 8])]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "alpha", 0.25),
        lambda model: setattr(model, "twice", True),
        lambda model: setattr(model, "beta", 3.0),
        lambda model: model.terms.append(4.0),
        lambda model: setattr(model, "terms", []),
        lambda model: setattr(model, "act", torch.sigmoid),
        lambda model: setattr(model, "up", made(lambda: nn.ConvTranspose1d(2, 3, 3))),
        lambda model: setattr(model.up, "stride", (3,)),
        lambda model: setattr(model.up, "bias", None),
        lambda model: nn.utils.parametrizations.weight_norm(model.up),
        lambda model: model.eval(),
    ],
    ids=range(11),
)
def test_what_changes_later_is_seen(change: Any) -> None:
    fused, twin = transfuse.fuse(made(Alpha)), made(Alpha)
    expect_alike(fused, twin, X)
    change(fused)
    change(twin)
    expect_alike(fused, twin, X)
    expect_alike(fused, twin, X)


def test_states_come_back_to_their_programs() -> None:
    fused = transfuse.fuse(made(Alpha))
    for alpha in (0.5, 1.0, 0.5, 1.0):
        fused.alpha = float(alpha)
        fused(X)
    count = len(fused.forward.versions)
    for alpha in (0.5, 1.0):
        fused.alpha = float(alpha)
        fused(X)
    assert len(fused.forward.versions) == count


def test_programs_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    fused, twin = transfuse.fuse(made(Alpha)), made(Alpha)
    for step in range(MOST + 3):
        fused.alpha = twin.alpha = step / 7
        assert torch.allclose(fused(X), twin(X), atol=1e-12)
    assert len(fused.forward.versions) == MOST
    said = [record for record in caplog.records if "versions" in record.getMessage()]
    assert len(said) == 1


def test_tensors_are_read_anew() -> None:
    fused, twin = transfuse.fuse(made(models.decoder)), made(models.decoder)
    state = {name: tensor + 1 for name, tensor in twin.state_dict().items()}
    for model in (fused, twin):
        model.load_state_dict(copy.deepcopy(state), assign=True)
    expect_alike(fused, twin, drawn(1, 3, 4, 4))
    fused.float()
    twin.float()
    x = drawn(1, 3, 4, 4).float()
    assert torch.allclose(fused(x), twin(x), atol=1e-5)
    assert fused(x).dtype is torch.float32


def test_tensors_shared_once_and_not_any_more() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(*(nn.ConvTranspose1d(2, 2, 2, stride=2) for _ in range(2)))
        model[1].weight = model[0].weight
        return model

    fused, twin = transfuse.fuse(made(make)), made(make)
    expect_alike(fused, twin, X)
    for model in (fused, twin):
        model[0].weight = nn.Parameter(drawn(2, 2, 2, seed=8))
    expect_alike(fused, twin, X)


def test_plain_tensor_attributes_and_global_tensors() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)
            self.mask = drawn(10, seed=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x) * self.mask + offset

    offset = drawn(1, seed=4)
    fused, twin = transfuse.fuse(made(Plain)), made(Plain)
    expect_alike(fused, twin, X)
    fused.mask = twin.mask = drawn(10, seed=5)
    expect_alike(fused, twin, X)


@pytest.mark.parametrize("make", [models.decoder, models.UNet, models.ByData, models.Vocoder])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_of_fused_models(way: str, make: Any) -> None:
    x = {models.decoder: drawn(1, 3, 4, 4), models.UNet: drawn(1, 2, 8, 8)}.get(make)
    if x is None:
        x = drawn(1, 2, 4, 4) if make is models.ByData else drawn(1, 4, 6)
    fused, twin = transfuse.fuse(made(make)), made(make)
    fused(x)
    if way == "deepcopy":
        other = copy.deepcopy(fused)
    elif make is models.Vocoder:
        pytest.skip("torch does not pickle parametrized modules")
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(fused))
    else:
        file = io.BytesIO()
        torch.save(fused, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    twin(x)  # as the fused one was
    expect_alike(other, twin, x)
    rows = transfuse.fusing.explain(other).rows
    assert [(row.name, row.fused) for row in rows] == [
        (row.name, row.fused) for row in fused.explain().rows
    ]
    assert next(other.parameters()) is not next(fused.parameters())


def test_parametrizations_are_computed_once_under_cached() -> None:
    fused = transfuse.fuse(made(models.Vocoder))
    ran = []
    fused.ups[0].parametrizations.weight[0].register_forward_hook(lambda *_: ran.append(1))
    with nn.utils.parametrize.cached():
        fused(drawn(1, 4, 6))
        fused(drawn(1, 4, 6))
    assert len(ran) == 1


def test_capture_under_cached_leaves_the_cache_alone() -> None:
    model, twin = made(models.Vocoder), made(models.Vocoder)
    with nn.utils.parametrize.cached():
        fused = transfuse.fuse(model)
        assert torch.allclose(fused(drawn(1, 4, 6)), twin(drawn(1, 4, 6)), atol=1e-12)


def test_weight_norm_removed_later() -> None:
    def make() -> nn.Module:
        return models.Vocoder(nn.utils.weight_norm)

    with pytest.warns(FutureWarning):
        fused, twin = transfuse.fuse(made(make)), made(make)
    x = drawn(1, 4, 6)
    expect_alike(fused, twin, x)
    for model in (fused, twin):
        for up in model.ups:
            nn.utils.remove_weight_norm(up)
    expect_alike(fused, twin, x)


def test_layers_of_this_package_stay() -> None:
    def make() -> nn.Module:
        own = transfuse.nn.FusedConvTranspose(2, 2, (2,), stride=2, then=[nn.ReLU()])
        return nn.Sequential(own, nn.ConvTranspose1d(2, 2, 2, stride=2), nn.Tanh())

    check(make, X, sites=1)


def test_calls_of_forward_itself() -> None:
    """As some models call their parts, past the hooks."""

    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.ConvTranspose1d(2, 2, 2, stride=2), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.part.forward(x))

    check(Direct, X, sites=1)


def test_threads_while_a_model_is_captured() -> None:
    """A module called in one thread is no part of what another one captures."""
    other, found = made(models.decoder), []
    x = drawn(1, 3, 4, 4)
    wanted = other.eval()(x)

    def work() -> None:
        for _ in range(50):
            found.append(torch.equal(other(x), wanted))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        transfuse.fuse(made(models.UNet))
    thread.join()
    assert all(found)


def test_models_captured_in_threads() -> None:
    """What a capture replaces in torch is back in place afterwards."""
    kept = (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__, isinstance)
    found: list[Tensor] = []

    def work() -> None:
        for _ in range(3):
            found.append(transfuse.fuse(made(Alpha))(X))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 9
    assert kept == (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__, isinstance)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(TypeError, match=r"fuse takes a torch.nn.Module, not str"):
        transfuse.fuse("model")  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"unfuse takes a torch.nn.Module, not int"):
        transfuse.unfuse(3)  # type: ignore[type-var]
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.ReLU())
    with pytest.raises(
        ValueError, match="Sequential has no transposed convolution; it has 2 ReLU, 1 Conv2d"
    ):
        transfuse.fuse(model)
    with pytest.raises(ValueError, match="lazy parameters have no sizes yet"):
        transfuse.fuse(nn.Sequential(nn.LazyConvTranspose1d(2, 2)))
    with pytest.raises(TypeError, match="example_inputs are a tensor, a tuple or a dict, not int"):
        transfuse.fuse(models.decoder(), example_inputs=3)


def test_lazy_layers_once_they_have_sizes() -> None:
    model = nn.Sequential(nn.LazyConvTranspose1d(2, 2, stride=2), nn.Tanh())
    model(torch.randn(1, 3, 4))
    assert fused_calls(transfuse.fuse(model)) == ["conv_transpose1d(+ bias) -> tanh"]


def test_examples_that_the_model_does_not_take() -> None:
    model = made(models.decoder)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"Sequential does not take these example_inputs: Runtime"):
        transfuse.fuse(model, drawn(1, 4, 4, 4))
    with pytest.raises(ValueError, match=r"Sequential does not take these example_inputs: TypeErr"):
        transfuse.fuse(model, (drawn(1, 3, 4, 4), 3))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert "forward" not in vars(model)


def test_examples_decide_at_once() -> None:
    fused = transfuse.fuse(made(models.UNet), drawn(1, 2, 9, 9))
    assert len(fused_calls(fused)) == 2
    count = len(fused.forward.versions)
    fused(drawn(1, 2, 9, 9))
    assert len(fused.forward.versions) == count
    named = transfuse.fuse(made(models.Optional_), {"x": drawn(1, 2, 3, 3), "act": "tanh"})
    assert fused_calls(named) == ["conv_transpose2d(+ bias) -> tanh -> scale(1.0)"]


def test_models_that_cannot_be_copied() -> None:
    model = made(models.decoder)
    model.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"the model cannot be copied .*inplace=True"):
        transfuse.fuse(model)
    expect_alike(transfuse.fuse(model, inplace=True), made(models.decoder), drawn(1, 3, 4, 4))


def test_fx_traces_a_fused_model_as_it_was_written() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.up(x))

    traced = torch.fx.symbolic_trace(transfuse.fuse(made(Plain)))
    assert torch.equal(traced(X), made(Plain)(X))


def test_torchs_compiler_of_sources_is_told_what_to_take() -> None:
    with pytest.raises(
        AttributeError, match=r"Sequential is fused: .* takes transfuse.unfuse of it"
    ):
        torch.jit.script(transfuse.fuse(models.decoder()))
