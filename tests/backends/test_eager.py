"""Plain torch on CUDA, as far as it shows without one: the precision a convolution is told."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transfuse import Chain, Problem
from transfuse.backends.eager import Eager
from transfuse.elements import float32_on_cuda
from transfuse.stages import ConvTranspose, conv_transpose, scale

CHAIN = Chain(conv_transpose(2, bias="b"), scale(2))
LINE = "n1 ci2 co4 i3x4 k3x2 s2x1 p1x0 d1x2 op1x0 g2 {} cuda:sm90"
X, W, B = torch.randn(1, 2, 3, 4), torch.randn(2, 2, 3, 2), torch.randn(4)


@pytest.fixture
def setting() -> Iterator[Any]:
    """torch's settings, which start as they are in a fresh process and end so."""
    yield torch.backends
    torch.backends.fp32_precision = "none"
    torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


class Told(TorchFunctionMode):
    """The convolutions torch was asked for: by name, and the precision where one was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool | None]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "conv" in func.__name__:
            explicit = args[-1] if func.__name__ == "_convolution" else None
            self.calls.append((func.__name__, explicit))
        return func(*args, **(kwargs or {}))


def told(precision: str, dtype: str = "fp32") -> tuple[Tensor, list[tuple[str, bool | None]]]:
    problem = Problem.parse(LINE.format(f"{dtype} {precision}".removesuffix(" ieee")))
    tensors = [t.double() if dtype == "fp64" else t for t in (X, W, B)]
    with Told() as mode:
        y = Eager().run(CHAIN, problem, *tensors[:2], {"b": tensors[2]})
    return y, mode.calls


@pytest.mark.parametrize("set_to", ["ieee", "tf32"])
@pytest.mark.parametrize("wanted", ["ieee", "tf32"])
def test_convolution_is_told_what_torch_is_not_set_to(
    wanted: str, set_to: str, setting: Any
) -> None:
    setting.cudnn.conv.fp32_precision = set_to
    y, calls = told(wanted)
    as_set = ("conv_transpose2d", None)
    assert calls == [as_set if wanted == set_to else ("_convolution", wanted == "tf32")]
    assert setting.cudnn.conv.fp32_precision == set_to
    on_cpu = Problem.parse(LINE.format("fp32").replace("cuda:sm90", "cpu"))
    assert y.equal(Eager().run(CHAIN, on_cpu, X, W, {"b": B}))


def test_other_types_have_one_arithmetic(setting: Any) -> None:
    setting.cudnn.conv.fp32_precision = "tf32"
    assert told("ieee", "fp64")[1] == [("conv_transpose2d", None)]


@pytest.mark.parametrize(
    ("line", "ulp"),
    [("fp32", 2**-23), ("fp32 tf32", 2**-10), ("fp16", 2**-10), ("bf16", 2**-7), ("fp64", 2**-52)],
)
def test_ulp_is_the_problems(line: str, ulp: float, setting: Any) -> None:
    for each in ("ieee", "tf32"):
        setting.cudnn.conv.fp32_precision = each
        assert Eager().ulp(Problem.parse(LINE.format(line))) == ulp


def test_settings_are_read_whichever_way_they_were_made(setting: Any) -> None:
    assert float32_on_cuda() == "tf32", "torch's default"
    setting.cudnn.allow_tf32 = False
    assert float32_on_cuda() == "ieee"
    setting.cudnn.allow_tf32 = True
    assert float32_on_cuda() == "tf32"
    setting.cudnn.conv.fp32_precision = "ieee"
    assert float32_on_cuda() == "ieee"
    with pytest.raises(RuntimeError, match="allow_tf32"):
        setting.cudnn.allow_tf32  # noqa: B018
    setting.cudnn.conv.fp32_precision = "none"
    assert float32_on_cuda() == "ieee"
    setting.fp32_precision = "tf32"
    assert float32_on_cuda() == "tf32", "inherited from the setting for everything"
    setting.cudnn.fp32_precision = "ieee"
    assert float32_on_cuda() == "ieee", "inherited from the setting for cuDNN"


ALONE = Chain(conv_transpose(2, bias="b"))


@pytest.mark.parametrize("set_to", ["ieee", "tf32"])
@pytest.mark.parametrize("wanted", ["ieee", "tf32"])
def test_a_convolution_alone_becomes_torchs_call(wanted: str, set_to: str, setting: Any) -> None:
    """The one that it is on a GPU, with the same bits, into an output, too."""
    setting.cudnn.conv.fp32_precision = set_to
    problem = Problem.parse(LINE.format(f"fp32 {wanted}".removesuffix(" ieee")))
    run: Any = Eager().prepare(ALONE, problem)
    again = run.like(X, W, {"b": B}, None)
    with Told() as mode:
        y = again(X, W, {"b": B})
    as_set = ("conv_transpose2d", None)
    assert mode.calls == [as_set if wanted == set_to else ("_convolution", wanted == "tf32")]
    assert y.equal(run(X, W, {"b": B}))
    out = torch.full_like(y, torch.nan)
    assert again(X, W, {"b": B}, out) is out
    assert out.equal(y)


@pytest.mark.parametrize(
    ("chain", "line"),
    [
        (ALONE, LINE.format("fp32").replace("cuda:sm90", "cpu")),  # values are looked at
        (CHAIN, LINE.format("fp16")),
        (Chain(ConvTranspose(2, bias="b", weight_scale=2.0)), LINE.format("fp16")),
        (ALONE, LINE.format("fp16").replace("op1x0", "op3x0")),
    ],
    ids=["on a CPU", "with stages", "scaled weights", "more than torch pads"],
)
def test_what_takes_more_stays_as_it_is(chain: Chain, line: str) -> None:
    run: Any = Eager().prepare(chain, Problem.parse(line))
    assert run.like(X, W, {"b": B}, None) is run
