"""Bad calls: torch's exception type, the numbers in the message, and nothing written.

Every row makes its mistake in transfuse and, where torch can be called in the same way, in torch
too, so that the table proves itself. In ``says`` an ellipsis stands for any text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import stages as s
from transfuse.problems import UnknownSlugError
from transfuse.stages import Stage

SENTINEL = -77.0
X, W, B = torch.ones(2, 4, 5, 6), torch.ones(4, 6, 3, 3), torch.ones(6)
Y = (2, 6, 7, 8)  # the shape of their transposed convolution
Z = torch.ones(Y)

Call = Callable[[Any], object]
Make = Callable[[], Any]


@dataclass(frozen=True)
class Bad:
    """``ours`` is called with ``out()``; ``theirs`` is torch's call for the same mistake."""

    id: str
    error: type[Exception]
    says: str
    ours: Call
    theirs: Make | None
    out: Make

    @property
    def pattern(self) -> str:
        return "(?s)" + ".*".join(re.escape(text.strip()) for text in self.says.split("…"))


def filled(*shape: int, **options: Any) -> Tensor:
    return torch.full(shape, SENTINEL, **options)


def bad(
    id: str,
    error: type[Exception],
    says: str,
    ours: Call,
    theirs: Make | None = None,
    out: Make | None = None,
) -> Bad:
    return Bad(id, error, says, ours, theirs, out or partial(filled, *Y))


def both(id: str, error: type[Exception], says: str, **changes: Any) -> Bad:
    """The same changed arguments to our conv_transpose2d and to torch's."""
    theirs = {"input": X, "weight": W, "bias": B} | changes
    ours = {("x" if name == "input" else name): value for name, value in theirs.items()}
    return bad(
        id,
        error,
        says,
        lambda out: transfuse.conv_transpose2d(**ours, out=out),
        lambda: F.conv_transpose2d(**theirs),
    )


def ours(id: str, error: type[Exception], says: str, **changes: Any) -> Bad:
    """As ``both``, for what torch accepts or does not know."""
    given = {"x": X, "weight": W, "bias": B} | changes
    return bad(id, error, says, lambda out: transfuse.conv_transpose2d(**({"out": out} | given)))


# fmt: off
OPTIONS = [
    both("stride-0", RuntimeError, "stride must be at least 1 … stride=[0, 0]", stride=0),
    both("stride-negative", RuntimeError, "at least 1 … stride=[2, -1]", stride=(2, -1)),
    both("stride-float", TypeError, "stride must be an integer, not float (2.0)", stride=2.0),
    both("stride-float-in-tuple", TypeError, "integer, not float (1.5)", stride=(1.5, 2)),
    both("stride-str", TypeError, "stride must be an integer, not str ('2')", stride="2"),
    both("stride-bool", TypeError, "stride must be an integer, not bool (True)", stride=True),
    both("stride-None", TypeError, "stride must be an integer, not NoneType", stride=None),
    both("stride-none-at-all", RuntimeError, "one integer or 2 of them … stride=[]", stride=()),
    both("stride-of-3", RuntimeError, "one integer or 2 … stride=[1, 2, 3]", stride=(1, 2, 3)),
    both("padding-negative", RuntimeError, "at least 0 … padding=[-1, -1]", padding=-1),
    both("padding-str", TypeError, "padding must be an integer, not str", padding="valid"),
    both("padding-None", TypeError, "padding must be an integer, not NoneType", padding=None),
    both("padding-of-3", RuntimeError, "one integer or 2 … [1, 1, 1]", padding=(1, 1, 1)),
    both("dilation-0", RuntimeError, "dilation must be at least 1 … [0, 0]", dilation=0),
    both("dilation-negative", RuntimeError, "at least 1 … dilation=[-2, -2]", dilation=-2),
    both("dilation-float", TypeError, "dilation must be an integer … (1.0)", dilation=1.0),
    both("dilation-of-3", RuntimeError, "one integer or 2 … [1, 1, 1]", dilation=(1, 1, 1)),
    both("output-padding-at-stride-1", RuntimeError,
        "smaller than either stride or dilation … output_padding=1 … dilation=1; legal: 0 to 0",
        output_padding=1),
    both("output-padding-of-one-axis", RuntimeError,
        "width has output_padding=2, stride=2, dilation=1; legal: 0 to 1", output_padding=(1, 2),
        stride=2),
    both("output-padding-at-dilation-3", RuntimeError,
        "output_padding=3, stride=1, dilation=3; legal: 0 to 2", output_padding=3, dilation=3),
    both("output-padding-negative", RuntimeError, "at least 0 … [-1, -1]", output_padding=-1),
    both("output-padding-float", TypeError, "integer, not float (0.0)", output_padding=0.0),
    both("output-padding-of-3", RuntimeError, "one integer or 2 … [0, 0, 0]",
        output_padding=[0] * 3),
    both("empty-output", RuntimeError,
        "empty output: height (5-1)*1 - 2*4 + 1*(3-1) + 0 + 1 = -1; padding may be at most 3",
        padding=4),
    both("groups-0", RuntimeError, "groups must be at least 1, but got groups=0", groups=0),
    both("groups-negative", RuntimeError, "groups must be at least 1 … groups=-2", groups=-2),
    both("groups-do-not-divide", RuntimeError, "groups=3 does not divide in_channels=4", groups=3),
    both("groups-float", TypeError, "groups must be an integer, not float (2.0)", groups=2.0),
    both("groups-bool", TypeError, "groups must be an integer, not bool", groups=True),
    both("groups-None", TypeError, "groups must be an integer, not NoneType", groups=None),
    both("groups-tuple", TypeError, "groups must be an integer, not tuple ((2, 2))", groups=(2, 2)),
    ours("unknown-backend", ValueError, "unknown backend 'cudnn'; known: …eager", backend="cudnn"),
]

TENSORS = [
    both("input-2D", RuntimeError, "3D (unbatched) or 4D (batched) … [5, 6]", input=X[0, 0]),
    both("input-5D", RuntimeError, "3D (unbatched) or 4D … [1, 2, 4, 5, 6]", input=X[None]),
    both("weight-3D", RuntimeError, "weight of 4 axes (Ci, Co/groups, … got [6, 3, 3]",
        weight=W[0]),
    both("weight-5D", RuntimeError, "weight of 4 axes … got [1, 4, 6, 3, 3]", weight=W[None]),
    both("channels", RuntimeError, "[4, 6, 3, 3] … 4 channels, but got 3", input=X[:, :3]),
    both("channels-unbatched", RuntimeError, "4 channels, but got 3 in [1, 3, 5, 6]",
        input=X[0, :3]),
    both("bias-size", RuntimeError, "each of 6 channels … got [7]", bias=torch.ones(7)),
    both("bias-2D", RuntimeError, "shape [6], but got [6, 1]", bias=B[:, None]),
    both("bias-4D", RuntimeError, "shape [6], but got [1, 6, 1, 1]", bias=B.view(1, 6, 1, 1)),
    both("bias-0D", RuntimeError, "shape [6], but got []", bias=B[0]),
    both("no-channels-in", RuntimeError, "in_channels=0", input=X[:, :0], weight=W[:0]),
    both("no-channels-out", RuntimeError, "out_channels=0", weight=W[:, :0], bias=B[:0]),
    both("no-taps", RuntimeError, "kernel must be at least 1 … [0, 3]", weight=W[:, :, :0]),
    both("no-space", RuntimeError, "spatial size must be at least 1 … [5, 0]", input=X[..., :0]),
    both("weight-double", RuntimeError, "torch.float32 and torch.float64", weight=W.double()),
    both("bias-double", RuntimeError, "torch.float32 and torch.float64", bias=B.double()),
    both("input-half", RuntimeError, "torch.float16 and torch.float32", input=X.half()),
    both("input-int", RuntimeError, "torch.int64 and torch.float32", input=X.long()),
    both("all-bool", NotImplementedError,
        "input has type torch.bool; implemented: torch.float32, torch.float64, …float16, …bfloat16",
        input=X.bool(), weight=W.bool(), bias=B.bool()),
    both("input-sparse", RuntimeError, "dense tensor … torch.sparse_coo", input=X.to_sparse()),
    both("weight-sparse", RuntimeError, "weight must be a dense tensor", weight=W.to_sparse()),
    both("bias-sparse", RuntimeError, "bias must be a dense tensor", bias=B.to_sparse()),
    both("input-numpy", TypeError, "input must be a torch.Tensor, not ndarray", input=X.numpy()),
    both("weight-numpy", TypeError, "weight must be a torch.Tensor, not ndarray", weight=W.numpy()),
    both("bias-numpy", TypeError, "bias must be a torch.Tensor, not ndarray", bias=B.numpy()),
    both("input-list", TypeError, "input must be a torch.Tensor, not list", input=[1.0]),
    both("input-None", TypeError, "input must be a torch.Tensor, not NoneType", input=None),
    both("weight-None", TypeError, "weight must be a torch.Tensor, not NoneType", weight=None),
    # torch computes these.
    ours("all-int", NotImplementedError, "torch.int64", x=X.long(), weight=W.long(), bias=None),
    ours("all-complex", NotImplementedError, "torch.complex64", x=X + 0j, weight=W + 0j, bias=None),
    ours("weight-elsewhere", RuntimeError, "same device … cpu and meta", weight=W.to("meta")),
    ours("bias-elsewhere", RuntimeError, "same device … cpu and meta", bias=B.to("meta")),
    ours("input-elsewhere", RuntimeError, "same device … meta and cpu", x=X.to("meta")),
    bad("1d-input-4D", RuntimeError,
        "2D (unbatched) or 3D (batched) input to conv_transpose1d … [2, 4, 5, 6]",
        lambda out: transfuse.conv_transpose1d(X, W[..., 0], out=out),
        lambda: F.conv_transpose1d(X, W[..., 0])),
    bad("3d-stride-of-2", RuntimeError, "one integer or 3 of them … stride=[2, 2]",
        lambda out: transfuse.conv_transpose3d(X[..., None], W[..., None], stride=(2, 2), out=out),
        lambda: F.conv_transpose3d(X[..., None], W[..., None], stride=(2, 2))),
    bad("any-rank-weight-2D", RuntimeError, "weight of 3, 4 or 5 axes … got [3, 3]",
        lambda out: transfuse.conv_transpose(X, W[0, 0], out=out)),
]

COUNTS = [
    both("unknown-keyword", TypeError, "unexpected keyword argument 'strides'", strides=2),
    bad("too-few", TypeError, "missing 1 required positional argument: 'weight'",
        lambda out: transfuse.conv_transpose2d(X, out=out),
        lambda: F.conv_transpose2d(X)),
    bad("too-many", TypeError, "8 positional arguments but 9",
        lambda out: transfuse.conv_transpose2d(X, W, B, 1, 0, 0, 1, 1, 1, out=out),
        lambda: F.conv_transpose2d(X, W, B, 1, 0, 0, 1, 1, 1)),
    bad("twice", TypeError, "multiple values for argument 'stride'",
        lambda out: transfuse.conv_transpose2d(X, W, B, 2, stride=2, out=out),
        lambda: F.conv_transpose2d(X, W, B, 2, stride=2)),
]
# fmt: on


def chained(
    id: str,
    error: type[Exception],
    says: str,
    then: Callable[[], Sequence[Stage]],
    theirs: Make | None = None,
    x: Tensor = X,
    weight: Tensor = W,
    before: Sequence[Stage] = (),
) -> Bad:
    def call(out: Tensor) -> Tensor:
        return transfuse.conv_transpose(x, weight, before=before, then=then(), out=out)

    return bad(id, error, says, call, theirs)


ONE, DOT = X[:1, :, :1, :1], W[:, :, :1, :1]  # their output has one value per channel

# fmt: off
CHAINS = [
    chained("pool-0", RuntimeError,
        "max_pool: kernel and stride must be at least 1, but got kernel=0", lambda: [s.max_pool(0)],
        lambda: F.max_pool2d(Z, 0)),
    chained("pool-negative", RuntimeError,
        "avg_pool: kernel and stride must be at least 1, but got kernel=-1",
        lambda: [s.avg_pool(-1)], lambda: F.avg_pool2d(Z, -1)),
    chained("pool-stride-0", RuntimeError, "at least 1, but got kernel=2, stride=0",
        lambda: [s.max_pool(2, stride=0)], lambda: F.max_pool2d(Z, 2, stride=0)),
    chained("pool-padding-over-half", RuntimeError,
        "padding must be 0 to 1 (half of kernel=2), but got padding=2",
        lambda: [s.max_pool(2, padding=2)], lambda: F.max_pool2d(Z, 2, padding=2)),
    chained("pool-padding-negative", RuntimeError,
        "padding must be 0 to 1 (half of kernel=3), but got padding=-1",
        lambda: [s.max_pool(3, padding=-1)], lambda: F.max_pool2d(Z, 3, padding=-1)),
    chained("pool-float", TypeError, "max_pool kernel_size must be an integer, not float (2.5)",
        lambda: [s.max_pool(2.5)], lambda: F.max_pool2d(Z, 2.5)),
    chained("pool-of-3", RuntimeError,
        "max_pool kernel_size to be one integer or 2 of them … [2, 2, 2]",
        lambda: [s.max_pool((2, 2, 2))], lambda: F.max_pool2d(Z, (2, 2, 2))),
    chained("pool-larger-than-space", RuntimeError,
        "max_pool: input of size [7, 8] is smaller than a window of 9", lambda: [s.max_pool(9)],
        lambda: F.max_pool2d(Z, 9)),
    chained("pool-first-larger-than-space", RuntimeError,
        "avg_pool: input of size [5, 6] is smaller than a window of 6", list,
        lambda: F.avg_pool2d(X, 6), before=[s.avg_pool(6)]),
    chained("batch-norm-of-one-value", ValueError,
        "batch_norm: expected more than 1 value per channel, got an input of [1, 6, 1, 1]",
        lambda: [s.batch_norm(training=True)],
        lambda: F.batch_norm(Z[:1, :, :1, :1], None, None, training=True),
        x=ONE, weight=DOT),
    chained("batch-norm-unbatched", ValueError, "expected 4D input (got 3D input)",
        lambda: [s.batch_norm(training=True)], lambda: torch.nn.BatchNorm2d(6)(Z[0]), x=X[0]),
    chained("batch-norm-weight-size", RuntimeError,
        "batch_norm.weight … each of 6 channels … got [7]",
        lambda: [s.batch_norm(weight=torch.ones(7), training=True)],
        lambda: F.batch_norm(Z, None, None, torch.ones(7), training=True)),
    chained("batch-norm-weight-numpy", TypeError,
        "batch_norm: weight must be one of Tensor, str, not ndarray",
        lambda: [s.batch_norm(weight=np.ones(6), training=True)],
        lambda: F.batch_norm(Z, None, None, np.ones(6), training=True)),
    chained("group-norm-weight-number", TypeError,
        "group_norm: weight must be one of Tensor, str, not float", lambda: [s.group_norm(2, 2.0)],
        lambda: F.group_norm(Z, 2, 2.0)),
    chained("group-norm-does-not-divide", RuntimeError,
        "num_groups=4 does not divide the 6 channels", lambda: [s.group_norm(4)],
        lambda: F.group_norm(Z, 4)),
    chained("group-norm-of-0", RuntimeError, "num_groups must be at least 1, but got 0",
        lambda: [s.group_norm(0)], lambda: torch.group_norm(Z, 0)),
    chained("group-norm-negative", RuntimeError, "num_groups must be at least 1, but got -2",
        lambda: [s.group_norm(-2)], lambda: F.group_norm(Z, -2)),
    chained("group-norm-float", TypeError, "num_groups must be an integer, not float (2.0)",
        lambda: [s.group_norm(2.0)], lambda: F.group_norm(Z, 2.0)),
    chained("group-norm-of-one-value", ValueError,
        "group_norm: expected more than 1 value per channel, got an input of [1, 6, 1, 1]",
        lambda: [s.group_norm(6)], lambda: F.group_norm(Z[:1, :, :1, :1], 6), x=ONE, weight=DOT),
    chained("add-size", RuntimeError, "add.other … each of 6 channels … got [7]",
        lambda: [s.add(torch.ones(7))], lambda: Z + torch.ones(7, 1, 1)),
    chained("add-along-width", RuntimeError, "broadcasts to … but got [1, 1, 1, 9]",
        lambda: [s.add(torch.ones(1, 1, 1, 9))], lambda: Z + torch.ones(1, 1, 1, 9)),
    chained("add-None", TypeError, "add: other must be one of int, float, Tensor, str, not None",
        lambda: [s.add(None)], lambda: Z + None),
    chained("add-a-name", TypeError,
        "nothing is given under the name 'skip', used in conv_transpose2d -> add(skip)",
        lambda: [s.add("skip")], lambda: Z + "skip"),
    chained("clamp-a-name", TypeError,
        "nothing is given under the name 'low', used in conv_transpose2d -> clamp(low, 1)",
        lambda: [s.clamp("low", 1)], lambda: torch.clamp(Z, "low", 1)),
    chained("clamp-list", TypeError, "clamp: min must be one of int, float, Tensor, str, not list",
        lambda: [s.clamp([0], 1)]),
    chained("scale-double", RuntimeError,
        "input and scale.factor must have the same type … torch.float32 and torch.float64",
        lambda: [s.scale(B.double())]),
    chained("softmax-over-width", ValueError,
        "softmax goes over 'channels', 'space', 'all' or axes by number, not 'width'",
        lambda: [s.softmax("width")]),
    chained("sum-over-samples", ValueError,
        "sum: dim=(0, 1) holds the samples' axis (0), and samples are never mixed",
        lambda: [s.sum((0, 1))]),
    chained("sum-over-samples-from-the-end", ValueError, "sum: dim=-4 holds the samples' axis (0)",
        lambda: [s.sum(-4)]),
    chained("sum-over-nothing", ValueError, "sum: dim is empty", lambda: [s.sum(())]),
    chained("sum-over-a-fifth-axis", IndexError,
        "Dimension out of range (expected to be in range of [-4, 3], but got 4)",
        lambda: [s.sum(4)], lambda: Z.sum(4)),
    chained("sum-twice", RuntimeError, "dim 1 appears multiple times in the list of dims",
        lambda: [s.sum((1, -3))], lambda: Z.sum((1, -3))),
    chained("pool-dilation-0", RuntimeError, "max_pool: dilation must be at least 1, but got 0",
        lambda: [s.max_pool(2, dilation=0)], lambda: F.max_pool2d(Z, 2, dilation=0)),
    chained("pool-divisor-0", RuntimeError, "avg_pool: divisor_override must not be 0",
        lambda: [s.avg_pool(2, divisor_override=0)],
        lambda: F.avg_pool2d(Z, 2, divisor_override=0)),
    chained("pool-norm-0", ZeroDivisionError, "lp_pool: norm_type must not be 0",
        lambda: [s.lp_pool(0, 2)], lambda: F.lp_pool2d(Z, 0, 2)),
    chained("adaptive-pool-of-3", RuntimeError,
        "adaptive_avg_pool: output_size must be one integer or 2 of them … [1, 2, 3]",
        lambda: [s.adaptive_avg_pool((1, 2, 3))], lambda: F.adaptive_avg_pool2d(Z, (1, 2, 3))),
    chained("adaptive-pool-negative", RuntimeError,
        "adaptive_max_pool: elements of output_size must be at least 1, but got [2, -1]",
        lambda: [s.adaptive_max_pool((2, -1))], lambda: F.adaptive_avg_pool2d(Z, (2, -1))),
    chained("instance-norm-of-one-position", ValueError,
        "instance_norm: expected more than 1 spatial element, got an input of [1, 6, 1, 1]",
        lambda: [s.instance_norm()], lambda: F.instance_norm(Z[:1, :, :1, :1]), x=ONE, weight=DOT),
    chained("instance-norm-without-statistics", RuntimeError,
        "instance_norm: without use_input_stats … running_mean and running_var are missing",
        lambda: [s.instance_norm(use_input_stats=False)],
        lambda: F.instance_norm(Z, use_input_stats=False)),
    chained("layer-norm-of-other-sizes", RuntimeError,
        "layer_norm: given normalized_shape=[7], expected input with shape [*, 7], but got "
        "input of size [2, 6, 7, 8]",
        lambda: [s.layer_norm(7)], lambda: F.layer_norm(Z, (7,))),
    chained("layer-norm-of-samples", ValueError,
        "layer_norm: normalized_shape=[2, 6, 7, 8] reaches the samples' axis",
        lambda: [s.layer_norm((2, 6, 7, 8))]),
    chained("layer-norm-of-nothing", RuntimeError,
        "layer_norm: expected normalized_shape to hold at least one size",
        lambda: [s.layer_norm(())], lambda: F.layer_norm(Z, ())),
    chained("layer-norm-of-a-word", ValueError, "layer_norm: normalized_shape must be … 'space'",
        lambda: [s.layer_norm("space")]),
    chained("rms-norm-weight-size", RuntimeError, "expected rms_norm.weight of shape [7, 8]",
        lambda: [s.rms_norm((7, 8), torch.ones(8, 7))],
        lambda: F.rms_norm(Z, (7, 8), torch.ones(8, 7))),
    chained("flatten-backwards", RuntimeError,
        "flatten: start_dim=3 cannot come after end_dim=1, as of 4 axes it does",
        lambda: [s.flatten(3, 1)], lambda: Z.flatten(3, 1)),
    chained("flatten-samples", ValueError, "flatten: start_dim=0 is the samples' axis",
        lambda: [s.flatten(0)]),
    chained("squeeze-samples", ValueError, "squeeze: dim=0 holds the samples' axis (0)",
        lambda: [s.squeeze(0)]),
    chained("squeeze-a-fifth-axis", IndexError, "expected to be in range of [-4, 3], but got 4",
        lambda: [s.squeeze(4)], lambda: Z.squeeze(4)),
    chained("shuffle-does-not-divide", RuntimeError,
        "channels to be divisible by upscale_factor**2, but 6 is not divisible by 4",
        lambda: [s.pixel_shuffle(2)], lambda: F.pixel_shuffle(Z, 2)),
    chained("shuffle-by-0", RuntimeError, "expects a positive upscale_factor, but got 0",
        lambda: [s.pixel_shuffle(0)], lambda: F.pixel_shuffle(Z, 0)),
    chained("cat-of-other-sizes", RuntimeError,
        "expected cat.skip of shape [2, 3, 7, 8], but got [2, 3, 7, 7]",
        lambda: [s.cat(torch.zeros(2, 3, 7, 7))],
        lambda: torch.cat((Z, torch.zeros(2, 3, 7, 7)), 1)),
    chained("cat-of-fewer-axes", RuntimeError,
        "cat: expected cat.skip of 4 axes, as the values have, but got [3, 7, 8]",
        lambda: [s.cat(torch.zeros(3, 7, 8))], lambda: torch.cat((Z, torch.zeros(3, 7, 8)), 1)),
    chained("behind-a-form", ValueError,
        "max_pool(2) stands behind sum(channels), after which the axes are others (keepdim=True",
        lambda: [s.sum("channels"), s.max_pool(2)]),
    chained("tensor-behind-a-form", ValueError,
        "add(tensor[6]) stands behind flatten, after which the axes are others: only",
        lambda: [s.flatten(), s.add(B)]),
    chained("name-behind-a-form", RuntimeError, "add(b) stands behind flatten",
        lambda: [s.flatten(), s.add("b")]),
    chained("sum-first", RuntimeError,
        "conv_transpose2d: weight expects 4 channels, but the stages before it give 1", list,
        lambda: F.conv_transpose2d(X.sum(1, keepdim=True), W),
        before=[s.sum("channels", keepdim=True)]),
    chained("not-a-stage", TypeError, "a chain is made of stages, not builtin_function_or_method",
        lambda: [torch.relu]),
    chained("class-of-a-stage", TypeError, "a chain is made of stages, not Function",
        lambda: [s.sigmoid]),
    chained("two-convolutions", ValueError,
        "exactly one transposed convolution, not 2: conv_transpose2d -> conv_transpose2d",
        lambda: [s.conv_transpose(2)]),
]
# fmt: on


def shifted() -> Tensor:
    """An output in the middle of a larger buffer."""
    return filled(1000)[200:872].view(Y)


def into(id: str, says: str, theirs: Make | None = None, **changes: Any) -> Bad:
    """A RuntimeError for ``out`` itself; what is given as a function is made from ``out``."""
    make = changes.pop("make", partial(filled, *Y))

    def call(out: Tensor) -> Tensor:
        made = {key: (v(out) if callable(v) else v) for key, v in changes.items()}
        return transfuse.conv_transpose2d(**({"x": X, "weight": W, "bias": B, "out": out} | made))

    return bad(id, RuntimeError, says, call, theirs, make)


BUFFER = torch.ones(9)
SHARED = "output shares memory with "

# fmt: off
OUTPUTS = [
    into("out-shape", "shape [2, 6, 7, 8], but got [2, 6, 8, 7]", make=partial(filled, 2, 6, 8, 7)),
    into("out-unbatched", "shape [2, 6, 7, 8], but got [6, 7, 8]", make=partial(filled, 6, 7, 8)),
    into("out-batched", "output of 3 axes, unbatched like the input, but got [1, 6, 7, 8]", x=X[0],
        make=partial(filled, 1, 6, 7, 8)),
    into("out-int", "type torch.float32, but got torch.int32",
        lambda: torch.add(Z, 1, out=filled(*Y, dtype=torch.int32)),
        make=partial(filled, *Y, dtype=torch.int32)),
    into("out-half", "type torch.float32, but got torch.float16",
        make=partial(filled, *Y, dtype=torch.float16)),
    into("out-elsewhere", "output on cpu, but got meta",
        lambda: torch.add(Z, 1, out=filled(*Y, device="meta")),
        make=partial(filled, *Y, device="meta")),
    bad("out-numpy", TypeError, "out must be a torch.Tensor, not ndarray",
        lambda out: transfuse.conv_transpose2d(X, W, out=out),
        lambda: torch.add(Z, 1, out=np.zeros(Y)), out=partial(np.full, Y, SENTINEL, np.float32)),
    into("out-requires-grad", "out= does not support automatic differentiation",
        lambda: torch.add(Z, 1, out=filled(*Y, requires_grad=True)),
        make=partial(filled, *Y, requires_grad=True)),
    into("input-requires-grad", "out= does not support automatic differentiation",
        lambda: torch.add(Z.clone().requires_grad_(), 1, out=filled(*Y)),
        x=X.clone().requires_grad_()),
    into("out-expanded", "strides [336, 56, 8, 0] may hold two elements in one place",
        lambda: torch.add(Z, 1, out=filled(2, 6, 7, 1).expand(Y)),
        make=lambda: filled(2, 6, 7, 8)[..., :1].expand(Y)),
    into("out-slides-over-itself", "strides [1, 2, 12, 24] may hold two elements in one place",
        make=lambda: filled(1000).as_strided(Y, (1, 2, 12, 24))),
    into("out-is-input", SHARED + "input", lambda: torch.add(BUFFER[1:], 1, out=BUFFER[:-1]),
        x=lambda out: out.view(-1)[:240].view(2, 4, 5, 6)),
    into("out-meets-input-at-one-end", SHARED + "input",
        x=lambda out: out.as_strided(X.shape, X.stride(), 0), make=shifted),
    into("out-is-weight", SHARED + "weight", weight=lambda out: out.view(-1)[-216:].view(W.shape)),
    into("out-meets-weight-through-steps", SHARED + "weight",
        weight=lambda out: out.view(-1)[1:433:2].view(W.shape)),
    into("out-is-bias", SHARED + "…bias", bias=lambda out: out[0, :, 0, 0]),
    into("out-meets-bias-in-one-element", SHARED + "…bias",
        bias=lambda out: out[0, 0, 0, :1].expand(6)),
]
# fmt: on


def call(operator: Callable[..., object], **given: Any) -> Callable[..., Call]:
    """``call(operator, right arguments)(changes)(out)``"""
    return lambda **changes: lambda out: operator(**({"out": out} | given | changes))


def solve(slug: str, **given: Any) -> Callable[..., Call]:
    return lambda **changes: (
        lambda out: transfuse.solution(slug)(**({"output": out} | given | changes))
    )


SOFTMAX = "conv-transpose2d-softmax-biasadd-scaling-sigmoid"
softmax = call(
    transfuse.operator(SOFTMAX),
    x=X,
    weight=W,
    conv_bias=B,
    add_bias=B.view(6, 1, 1),
    scaling_factor=2.0,
)
avgpool = call(
    transfuse.conv_transpose3d_avgpool_clamp_softmax_multiply,
    x=torch.ones(2, 3, 4, 4, 5),
    weight=torch.ones(3, 5, 2, 2, 2),
    scale=torch.ones(1, 5, 1, 1, 1),
    pool_kernel=2,
    clamp_min=0.0,
    clamp_max=1.0,
)
batchnorm = call(
    transfuse.conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
    x=X,
    weight=W,
    bn_weight=B,
    bn_bias=B,
    gn_weight=B,
    gn_bias=B,
    num_groups=3,
)
max_max_sum = call(
    transfuse.conv_transpose3d_max_max_sum,
    x=torch.ones(2, 3, 4, 4, 5),
    weight=torch.ones(3, 5, 4, 4, 4),
    conv_bias=torch.ones(5),
)
plain = call(transfuse.conv_transpose_2d_square_input_asym_kernel, x=X, weight=W)
POOLED = partial(filled, 2, 6, 3, 4)
VOLUME = partial(filled, 2, 5, 3, 3, 3)

# fmt: off
OPERATORS = [
    bad("asym-bias", TypeError, "too many positional arguments; it takes (x, weight, stride, ",
        lambda out: transfuse.conv_transpose_2d_square_input_asym_kernel(X, W, B, out=out)),
    bad("asym-groups-0", RuntimeError, "groups must be at least 1 … groups=0", plain(groups=0)),
    bad("softmax-without-factor", TypeError,
        "missing a required … 'scaling_factor'; it takes (x, weight, conv_bias, add_bias, ",
        lambda out: transfuse.operator(SOFTMAX)(X, W, B, B, out=out)),
    bad("softmax-factor-str", TypeError, "scaling_factor must be a real number, not str ('2')",
        softmax(scaling_factor="2"), lambda: torch.mul(Z, "2")),
    bad("softmax-factor-None", TypeError,
        "scaling_factor must be a real number, not NoneType (None)", softmax(scaling_factor=None),
        lambda: torch.mul(Z, None)),
    bad("softmax-conv-bias-size", RuntimeError, "conv_bias … each of 6 channels … got [7]",
        softmax(conv_bias=torch.ones(7)), lambda: F.conv_transpose2d(X, W, torch.ones(7))),
    bad("softmax-add-bias-size", RuntimeError, "add_bias … each of 6 channels … got [7, 1, 1]",
        softmax(add_bias=torch.ones(7, 1, 1)), lambda: Z + torch.ones(7, 1, 1)),
    bad("softmax-dilation", TypeError,
        "unexpected keyword argument 'dilation'; it takes (x, weight, ", softmax(dilation=2)),
    bad("avgpool-0", RuntimeError,
        "avg_pool: kernel and stride must be at least 1, but got kernel=0", avgpool(pool_kernel=0),
        lambda: F.avg_pool3d(torch.ones(2, 3, 4, 4, 5), 0), VOLUME),
    bad("avgpool-float", TypeError, "pool_kernel must be an integer, not float (2.0)",
        avgpool(pool_kernel=2.0), lambda: F.avg_pool3d(torch.ones(2, 3, 4, 4, 5), 2.0), VOLUME),
    bad("avgpool-larger-than-space", RuntimeError,
        "avg_pool: input of size [4, 4, 5] is smaller than a window of 5", avgpool(pool_kernel=5),
        lambda: F.avg_pool3d(torch.ones(2, 3, 4, 4, 5), 5), VOLUME),
    bad("avgpool-clamp-str", TypeError, "clamp_min must be a real number, not str ('0')",
        avgpool(clamp_min="0"), lambda: torch.clamp(Z, "0", 1.0), VOLUME),
    bad("avgpool-clamp-bool", TypeError, "clamp_max must be a real number, not bool (True)",
        avgpool(clamp_max=True), out=VOLUME),
    bad("avgpool-scale-size", RuntimeError, "scale … each of 5 channels … got [1, 4, 1, 1, 1]",
        avgpool(scale=torch.ones(1, 4, 1, 1, 1)),
        lambda: torch.ones(2, 5, 3, 3, 3) * torch.ones(1, 4, 1, 1, 1), VOLUME),
    bad("batchnorm-kernel-shape", RuntimeError,
        "kernel of shape [4, 6, 3, 3] (dense) or [4, 3, 3, 3] (groups=2), but got [4, 5, 3, 3]",
        batchnorm(weight=torch.ones(4, 5, 3, 3), groups=2), out=POOLED),
    bad("batchnorm-kernel-of-groups-without-groups", RuntimeError,
        "kernel of shape [4, 6, 3, 3] (dense), but got [4, 3, 3, 3]", batchnorm(weight=W[:, :3]),
        out=POOLED),
    bad("batchnorm-groups-0", RuntimeError, "groups must be at least 1, but got groups=0",
        batchnorm(groups=0), lambda: F.conv_transpose2d(X, W, groups=0), POOLED),
    bad("batchnorm-groups-do-not-divide-input", RuntimeError,
        "groups=3 does not divide in_channels=4", batchnorm(weight=W[:, :2], groups=3),
        lambda: F.conv_transpose2d(X, W[:, :2], groups=3), POOLED),
    bad("batchnorm-num-groups", RuntimeError, "num_groups=4 does not divide the 6 channels",
        batchnorm(num_groups=4), lambda: F.group_norm(Z, 4), POOLED),
    bad("batchnorm-num-groups-0", RuntimeError, "num_groups must be at least 1, but got 0",
        batchnorm(num_groups=0), lambda: torch.group_norm(Z, 0), POOLED),
    bad("batchnorm-num-groups-float", TypeError, "num_groups must be an integer, not float (3.0)",
        batchnorm(num_groups=3.0), lambda: F.group_norm(Z, 3.0), POOLED),
    bad("batchnorm-gn-bias-size", RuntimeError, "gn_bias … each of 6 channels … got [5]",
        batchnorm(gn_bias=B[:5]), lambda: F.group_norm(Z, 3, B, B[:5]), POOLED),
    bad("batchnorm-unbatched", ValueError, "expected 4D input (got 3D input)", batchnorm(x=X[0]),
        lambda: torch.nn.BatchNorm2d(6)(Z[0]), partial(filled, 6, 3, 4)),
    bad("batchnorm-of-one-value", ValueError,
        "more than 1 value per channel, got an input of [1, 6, 1, 1]", batchnorm(x=ONE, weight=DOT),
        lambda: F.batch_norm(Z[:1, :, :1, :1], None, None, training=True), POOLED),
    bad("batchnorm-nothing-to-pool", RuntimeError,
        "max_pool: input of size [1, 6] is smaller than a window of 2",
        batchnorm(x=X[:, :, :1], weight=DOT), lambda: F.max_pool2d(Z[:, :, :1, :6], 2), POOLED),
    bad("max-max-sum-second-pool", RuntimeError,
        "max_pool: input of size [2, 2, 3] is smaller than a window of 3",
        max_max_sum(weight=torch.ones(3, 5, 2, 2, 2)),
        lambda: F.max_pool3d(torch.ones(2, 5, 2, 2, 3), 3), partial(filled, 2, 1, 1, 1, 1)),
    bad("max-max-sum-out-keeps-channels", RuntimeError,
        "output of shape [2, 1, 1, 1, 1], but got [2, 5, 1, 1, 1]", max_max_sum(),
        out=partial(filled, 2, 5, 1, 1, 1)),
]
# fmt: on

PLAIN = {
    "input": X,
    "kernel": W,
    "batch_size": 2,
    "in_channels": 4,
    "out_channels": 6,
    "height": 5,
    "width": 6,
    "kernel_h": 3,
    "kernel_w": 3,
    "stride_h": 1,
    "stride_w": 1,
    "padding_h": 0,
    "padding_w": 0,
    "output_padding_h": 0,
    "output_padding_w": 0,
    "dilation_h": 1,
    "dilation_w": 1,
    "groups": 1,
}
NUMBERS = [number for number in PLAIN.values() if isinstance(number, int)]
ASYM = "conv-transpose-2d-square-input-asym-kernel"
asym = solve(ASYM, **PLAIN)
without_dilation = {k: v for k, v in PLAIN.items() if not k.startswith("dilation")}
norms = dict.fromkeys(("bn_weight", "bn_bias", "gn_weight", "gn_bias"), B)
norm = solve(
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", **without_dilation, **norms, num_groups=3
)


def array(**flags: bool) -> np.ndarray:
    out = np.full(Y, SENTINEL, np.float32)
    out.setflags(**flags)
    return out


# fmt: off
SOLUTIONS = [
    bad("unknown-slug", UnknownSlugError, "'max-sum'", lambda out: transfuse.solution("max-sum")),
    bad("misspelt-slug", KeyError, "did you mean 'conv-transpose3d-max-max-sum'?",
        lambda out: transfuse.operator("conv-transpose3d-max-max-sums")),
    bad("batch-size", RuntimeError, "[3, 4, 5, 6], but got [2, 4, 5, 6]", asym(batch_size=3)),
    bad("batch-negative", RuntimeError, "batch must be at least 0 … -1", asym(batch_size=-1)),
    bad("in-channels", RuntimeError, "[2, 8, 5, 6], but got [2, 4, 5, 6]", asym(in_channels=8)),
    bad("out-channels", RuntimeError, "[4, 7, 3, 3], but got [4, 6, 3, 3]", asym(out_channels=7)),
    bad("height", RuntimeError, "[2, 4, 6, 6], but got [2, 4, 5, 6]", asym(height=6)),
    bad("width", RuntimeError, "[2, 4, 5, 7], but got [2, 4, 5, 6]", asym(width=7)),
    bad("height-and-width-swapped", RuntimeError, "[2, 4, 6, 5], but", asym(height=6, width=5)),
    bad("kernel", RuntimeError, "[4, 6, 3, 2], but got [4, 6, 3, 3]", asym(kernel_w=2)),
    bad("kernel-0", RuntimeError, "kernel must be at least 1 … kernel=[0, 3]", asym(kernel_h=0)),
    bad("stride", RuntimeError, "[2, 6, 11, 8], but got [2, 6, 7, 8]", asym(stride_h=2)),
    bad("stride-0-of-w", RuntimeError, "at least 1 … stride=[1, 0]", asym(stride_w=0)),
    bad("padding", RuntimeError, "[2, 6, 7, 6], but got [2, 6, 7, 8]", asym(padding_w=1)),
    bad("padding-negative-of-h", RuntimeError, "padding=[-1, 0]", asym(padding_h=-1)),
    bad("dilation", RuntimeError, "[2, 6, 7, 10], but got [2, 6, 7, 8]", asym(dilation_w=2)),
    bad("output-padding", RuntimeError, "height … legal: 0 to 0", asym(output_padding_h=1)),
    bad("groups", RuntimeError, "[4, 3, 3, 3], but got [4, 6, 3, 3]", asym(groups=2)),
    bad("groups-3", RuntimeError, "groups=3 does not divide in_channels=4", asym(groups=3)),
    bad("size-float", TypeError, "batch_size must be an integer, not float", asym(batch_size=2.0)),
    bad("size-str", TypeError, "width must be an integer, not str ('6')", asym(width="6")),
    bad("size-bool", TypeError, "groups must be an integer, not bool", asym(groups=True)),
    bad("size-None", TypeError, "stride_h must be an integer, not NoneType", asym(stride_h=None)),
    bad("unknown-name", TypeError, "'bias'; it takes (input, kernel, output", asym(bias=B)),
    bad("one-short", TypeError,
        "missing a required argument: 'groups'; it takes (input, kernel, output, batch_size",
        lambda out: transfuse.solution(ASYM)(X, W, out, *NUMBERS[:-1])),
    bad("one-over", TypeError,
        "too many positional arguments; it takes (input, kernel, output, batch_size",
        lambda out: transfuse.solution(ASYM)(X, W, out, *NUMBERS, 1)),
    bad("given-twice", TypeError,
        "multiple values for argument 'input'; it takes (input, kernel, output",
        lambda out: transfuse.solution(ASYM)(X, **PLAIN, output=out)),
    bad("input-unbatched", RuntimeError, "[2, 4, 5, 6], but got [4, 5, 6]", asym(input=X[0])),
    bad("input-type", TypeError, "input must be a torch tensor, a NumPy array", asym(input="x")),
    bad("numpy-double", RuntimeError, "float32 and torch.float64", asym(kernel=np.ones(W.shape))),
    bad("numpy-int", NotImplementedError, "torch.int16; implemented: torch.float32",
        asym(input=np.ones(X.shape, np.int16), kernel=np.ones(W.shape, np.int16))),
    bad("output-shape", RuntimeError, "[2, 6, 7, 8], but got [6, 7, 8]", asym(), None,
        partial(filled, 6, 7, 8)),
    bad("output-list", TypeError, "output must be a torch tensor … not list", asym(output=[0.0])),
    bad("output-double", RuntimeError, "type torch.float32, but got torch.float64", asym(),
        out=partial(np.full, Y, SENTINEL)),
    bad("output-read-only", ValueError, "output is a read-only NumPy array", asym(),
        out=partial(array, write=False)),
    bad("output-backwards", ValueError, "output has negative strides (1344, 224, 32, -4)", asym(),
        out=lambda: array()[..., ::-1]),
    bad("output-broadcast", RuntimeError,
        "strides [0, 56, 8, 1] may hold two elements in one place", asym(),
        out=lambda: np.lib.stride_tricks.as_strided(array(), strides=(0, 224, 32, 4))),
    bad("output-is-input", RuntimeError, SHARED + "input",
        lambda out: asym(input=out.reshape(-1)[100:340].reshape(X.shape))(out), out=array),
    bad("norm-kernel-shape", RuntimeError,
        "[4, 6, 3, 3] (dense) or [4, 3, 3, 3] (groups=2), but got [4, 2, 3, 3]",
        norm(kernel=W[:, :2], groups=2), out=POOLED),
    bad("norm-out-channels", RuntimeError, "[4, 9, 3, 3] (dense), but got [4, 6, 3, 3]",
        norm(out_channels=9), out=POOLED),
    bad("norm-num-groups", RuntimeError, "num_groups=5 does not divide the 6 channels",
        norm(num_groups=5), out=POOLED),
    *(
        bad(
            f"output-is-{name}",
            RuntimeError,
            SHARED + name,
            lambda out, name=name: norm(**{name: out[0, :, 0, 0]})(out),
            out=POOLED,
        )
        for name in norms
    ),
]
# fmt: on

TABLE = [*OPTIONS, *TENSORS, *COUNTS, *CHAINS, *OUTPUTS, *OPERATORS, *SOLUTIONS]


def memory(out: Any) -> bytes:
    """All of the buffer an output lies in, so that its neighbours are seen too."""
    if isinstance(out, np.ndarray):
        while out.base is not None:
            out = out.base
        return out.tobytes()
    return b"" if out.device.type == "meta" else bytes(out.untyped_storage())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_refuses_with_the_numbers_and_writes_nothing(row: Bad) -> None:
    out = row.out()
    before = memory(out)
    with pytest.raises(row.error, match=row.pattern):
        row.ours(out)
    assert memory(out) == before


@pytest.mark.parametrize("row", [row for row in TABLE if row.theirs], ids=lambda row: row.id)
def test_torch_raises_the_same_type(row: Bad) -> None:
    assert row.theirs is not None
    with pytest.raises(row.error):
        row.theirs()


def test_the_right_calls_of_the_table_pass() -> None:
    """What the rows change is legal, so that each fails for its own mistake alone."""
    right = [
        (softmax, partial(filled, *Y)),
        (avgpool, VOLUME),
        (batchnorm, POOLED),
        (max_max_sum, partial(filled, 2, 1, 1, 1, 1)),
        (plain, partial(filled, *Y)),
        (asym, partial(filled, *Y)),
        (asym, array),
        (norm, POOLED),
    ]
    for arguments, make in right:
        out = make()
        arguments()(out)
        assert not (out == SENTINEL).any()


def test_ids_are_unique() -> None:
    assert len({row.id for row in TABLE}) == len(TABLE) >= 150
