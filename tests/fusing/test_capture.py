"""What a forward may do, and what is then seen of it: nothing is baked in that could change."""

import random
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import transfuse
from tests.fusing.alike import check, drawn, expect_alike, made
from transfuse.fusing.forwards import Forward

Pair = namedtuple("Pair", "first second")
X = drawn(2, 2, 5)


@dataclass
class Record:
    first: Tensor
    second: Tensor


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(2, 2, 4, stride=2, padding=1)
        self.seen: list[Tensor] = []
        self.calls = 0


def model(forward: Callable[..., Any], **more: Any) -> Callable[[], nn.Module]:
    """A module with a convolution ``up`` and this forward."""
    kind = type("Model", (Base,), {"forward": forward})

    def make() -> nn.Module:
        made = kind()
        for name, value in more.items():
            setattr(made, name, value() if isinstance(value, type) else value)
        return made

    return make


def no_grad(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    with torch.no_grad():
        mean = y.mean()
    return y - mean


def autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y = self.up(x)
    return torch.relu(y)


def checkpointed(self: Any, x: Tensor) -> Tensor:
    return torch.relu(checkpoint(self.up, x, use_reentrant=False))


def sets(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    self.last = y
    return y


def appends(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    self.seen.append(y)
    return y


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return torch.relu(self.up(x)) * self.calls


def item(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.up(x)) * float(x.detach().sum())


def loops(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    while y.norm() > 1:
        y = y / 2
    return y


UNSEEN = {
    no_grad: "enters torch's no_grad",
    autocast: "enters torch's autocast",
    checkpointed: "asks whether autocast is on",
    sets: "sets self.last",
    appends: "changes what is in self.seen",
    counts: "sets self.calls",
    item: "asks in Python for the values of a tensor",
    loops: "asks in Python for the values of a tensor",
}


@pytest.mark.parametrize("forward", UNSEEN, ids=lambda forward: forward.__name__)
def test_left_as_it_was_written(forward: Callable[..., Any]) -> None:
    """The convolution is fused by itself, and the reason has the file and line."""
    make = model(forward)
    fused, twin = transfuse.fuse(made(make)), made(make)
    for _ in range(2):
        expect_alike(fused, twin, X)
    assert fused.calls == twin.calls
    assert len(fused.seen) == len(twin.seen)
    [row] = fused.explain().rows
    assert row.chain == "conv_transpose1d(+ bias)"
    assert UNSEEN[forward] in row.why
    if forward is not appends:  # which is found when it is over
        assert "test_capture.py:" in row.why


def layer_drop(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if random.random() < 0.5 else y


def numpy_drop(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if np.random.uniform() < 0.5 else y  # noqa: NPY002 as forwards do


@pytest.mark.parametrize("forward", [layer_drop, numpy_drop])
def test_python_draws_anew_in_each_call(forward: Callable[..., Any]) -> None:
    make = model(forward)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    fused = transfuse.fuse(made(make))
    found = [fused(X) for _ in range(8)]
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    twin = made(make)
    for y in found:
        assert torch.allclose(y, twin(X), atol=1e-12)
    assert "draws Python's or NumPy's random numbers" in fused.explain().rows[0].why


def asks_class(self: Any, x: Tensor) -> Tensor:
    y = self.up(x)
    if isinstance(x, list | tuple) or not isinstance(y, Tensor) or not torch.is_tensor(x):
        return y
    return torch.relu(y)


def named_outputs(self: Any, x: Tensor) -> Any:
    y = torch.relu(self.up(x))
    return OrderedDict(out=Pair(y, y + 1), more=[y, (None, "text", 3)])


def nothing_new(self: Any, x: Tensor) -> Any:
    return torch.relu(self.up(x)), x


def catches(self: Any, x: Tensor) -> Tensor:
    try:
        if x.sum() > 1e9:
            return x
    except Exception:
        return self.up(x) * 0
    return torch.relu(self.up(x))


def grad_mode(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if torch.is_grad_enabled() else y


def made_in_the_call(self: Any, x: Tensor) -> Tensor:
    ramp = torch.arange(10, dtype=x.dtype, device=x.device) / 10
    return torch.relu(self.up(x) + ramp) * torch.tensor(0.5, dtype=x.dtype)


def numbers(self: Any, x: Tensor) -> Tensor:
    """Functions of torch that take a number or a tensor look closely at what they are given."""
    y = torch.pow(torch.sin(self.up(x)), 2) + torch.pow(2, x.mean())
    return torch.clamp(torch.add(y, 1), 0, 4) + torch.full((1,), 0.5, dtype=x.dtype)


def sizes_go_on(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    n, c, length = y.shape
    return y.reshape(n * c, length).sum(0) / y.size(-1) + y.dim()


SEEN = [asks_class, named_outputs, nothing_new, numbers, made_in_the_call, sizes_go_on]


@pytest.mark.parametrize("forward", SEEN, ids=lambda forward: forward.__name__)
def test_seen_through(forward: Callable[..., Any]) -> None:
    check(model(forward), X, sites=1)
    fused = transfuse.fuse(made(model(forward)))
    assert type(fused(X)) is type(made(model(forward))(X))
    assert isinstance(vars(fused)["forward"], Forward)


def test_exceptions_that_a_forward_catches() -> None:
    """Its own handler must not hide that the forward is no graph."""
    fused, twin = transfuse.fuse(made(model(catches))), made(model(catches))
    expect_alike(fused, twin, X)


def test_grad_mode_that_a_forward_asks_for() -> None:
    fused, twin = transfuse.fuse(made(model(grad_mode))), made(model(grad_mode))
    for _ in range(2):
        expect_alike(fused, twin, X)
        with torch.no_grad():
            assert torch.allclose(fused(X), twin(X), atol=1e-12)


def test_dataclass_outputs() -> None:
    def forward(self: Any, x: Tensor) -> Record:
        y = torch.relu(self.up(x))
        return Record(y, y + 1)

    fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
    for _ in range(2):
        y, wanted = fused(X), twin(X)
        assert type(y) is Record
        assert torch.allclose(y.second, wanted.second, atol=1e-12)


def test_lists_and_dicts_of_tensors_as_arguments() -> None:
    def forward(self: Any, features: list[Tensor], extra: dict[str, Tensor]) -> Tensor:
        y = 0
        for feature in features:
            y = y + torch.relu(self.up(feature)) + extra["shift"]
        return y

    fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
    shift = drawn(10, seed=4)
    for count in (1, 2, 3, 2):
        features = [drawn(2, 2, 5, seed=i) for i in range(count)]
        expect_alike(fused, twin, features, {"shift": shift})
        assert sum(row.fused for row in fused.explain().rows) >= 1


def test_leaves_with_state_are_called_once_for_a_call() -> None:
    """Finding sizes runs modules that are left whole: none of it is seen."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 2, 1)
            self.calls, self.kept = 0, {}
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.kept["x"] = x
            self.total = self.total + 1
            return self.conv(x)

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.up(self.before(x))
        return torch.relu(y) if y.shape[-1] > 3 else y

    make = model(forward, before=Counter)
    fused, twin = transfuse.fuse(made(make)), made(make)
    for calls in (1, 2, 3):
        expect_alike(fused, twin, X)
        assert fused.before.calls == calls
        assert fused.before.total == calls
        assert type(fused.before.kept["x"]) is Tensor


def test_random_numbers_of_torch_stand_where_they_stood() -> None:
    """A capture draws none: what is drawn after a first call is the same."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.dropout(torch.relu(self.up(x)), 0.5, self.training)
        return y + torch.rand_like(y) if y.shape[0] > 1 else y

    fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
    torch.manual_seed(7)
    wanted = twin(X), torch.rand(3)
    torch.manual_seed(7)
    found = fused(X), torch.rand(3)
    assert torch.allclose(found[0], wanted[0], atol=1e-12)
    assert torch.equal(found[1], wanted[1])


def test_functions_of_a_forward_without_layers() -> None:
    """A weight of its own, inside a module that asks for values."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(F.conv_transpose1d(x, self.weight, stride=2))

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if y.sum() > 0 else self.up(x)

    make = model(forward, inner=Inner)
    fused, twin = transfuse.fuse(made(make)), made(make)
    assert torch.allclose(fused(X), twin(X), atol=1e-12)
    assert [row.chain for row in fused.explain().rows] == [
        "conv_transpose1d(+ bias)",
        "conv_transpose1d -> sigmoid",
    ]


def test_sizes_decide_by_call() -> None:
    """A branch by sizes is taken as they are in each call; other sizes alike need no version."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.up(x)
        if y.shape[-1] > 12:
            y = y[..., :12]
        return torch.relu(y)

    fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
    for length in (4, 8, 5, 9, 4, 8):
        expect_alike(fused, twin, drawn(1, 2, length))
    assert len(fused.forward.versions) == 2


def test_autocast_around_a_fused_model() -> None:
    fused, twin = (
        each.float() for each in (transfuse.fuse(made(model(asks_class))), made(model(asks_class)))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = fused(X.float()), twin(X.float())
    assert found.dtype is wanted.dtype
    assert torch.allclose(found.float(), wanted.float(), atol=0.05)


def caught(self: Any, x: Tensor, skip: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    try:
        return y + skip
    except RuntimeError:
        return y + skip.mean(2, keepdim=True)


def caught_whatever_it_is(self: Any, x: Tensor, skip: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    try:
        return y + skip
    except:  # noqa: E722 as forwards do
        return y


def suppressed(self: Any, x: Tensor, skip: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    with suppress(RuntimeError):
        y = y + skip
    return y


@pytest.mark.parametrize("example", [None, (X, drawn(2, 2, 10))])
@pytest.mark.parametrize("forward", [caught, caught_whatever_it_is, suppressed])
def test_exceptions_that_only_some_sizes_raise(forward: Callable[..., Any], example: Any) -> None:
    fused, twin = transfuse.fuse(made(model(forward)), example), made(model(forward))
    for length in (10, 7, 10):
        expect_alike(fused, twin, X, drawn(2, 2, length))
    assert "catches exceptions" in fused.explain().rows[0].why


def cleaned_up(self: Any, x: Tensor) -> Tensor:
    with torch.profiler.record_function("up"):
        y = torch.relu(self.up(x))
    try:
        return y * 2
    finally:
        del y


def test_what_is_done_in_any_case_is_seen_through() -> None:
    check(model(cleaned_up), X, sites=1)
    assert not transfuse.fuse(made(model(cleaned_up))).explain().rows[0].why.count("catches")


def in_inference(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if torch.is_inference_mode_enabled() else y


def in_the_default_type(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.up(x)).to(torch.get_default_dtype())


@pytest.mark.parametrize("forward", [in_inference, in_the_default_type])
def test_modes_that_a_forward_asks_for(forward: Callable[..., Any]) -> None:
    fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
    for _ in range(2):
        assert torch.allclose(fused(X), twin(X), atol=1e-6)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.inference_mode():
                torch.testing.assert_close(fused(X), twin(X))
        finally:
            torch.set_default_dtype(torch.float32)


def by_type(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if type(x) is torch.Tensor else y


def by_type_of_a_size(self: Any, x: Tensor) -> Tensor:
    y = torch.relu(self.up(x))
    return y * 2 if type(x.shape[0]) == int else y  # noqa: E721 as forwards do


def by_another_type(self: Any, x: Any) -> Tensor:
    if type(x) is list:
        x = x[0]
    assert type(self).__name__ == "Model"
    return torch.relu(self.up(x))


def test_types_that_a_forward_compares() -> None:
    for forward, reason in (
        (by_type, "compares type() of a value"),
        (by_type_of_a_size, "compares type() of a value"),
        (by_another_type, "its result is returned"),
    ):
        fused, twin = transfuse.fuse(made(model(forward))), made(model(forward))
        expect_alike(fused, twin, X)
        assert reason in fused.explain().rows[0].why
