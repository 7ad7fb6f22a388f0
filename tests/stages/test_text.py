"""Stages from text: both forms, every stage, and exact errors for all else."""

import re
from inspect import Parameter

import pytest

from transfuse import stages
from transfuse.stages import (
    ConvTranspose,
    Function,
    Stage,
    adaptive_avg_pool,
    adaptive_max_pool,
    add,
    amax,
    amin,
    avg_pool,
    batch_norm,
    cat,
    clamp,
    flatten,
    gelu,
    group_norm,
    instance_norm,
    layer_norm,
    log_softmax,
    logsumexp,
    lp_pool,
    max_pool,
    mean,
    pixel_shuffle,
    pow,
    rms_norm,
    scale,
    sigmoid,
    softmax,
    squeeze,
    sum,
    tanh,
)
from transfuse.stages.text import KNOWN, parse

inf = float("inf")
WRITTEN: dict[str, tuple[Stage, ...]] = {
    "tanh": (tanh(),),
    "sigmoid()": (sigmoid(),),
    "sigmoid, tanh": (sigmoid(), tanh()),
    " sigmoid -> tanh ": (sigmoid(), tanh()),
    "clamp(-1, 1.5)": (clamp(-1, 1.5),),
    "clamp(-inf, inf)": (clamp(-inf, inf),),
    "clamp(min=0, max=1e3)": (clamp(0, 1000.0),),
    "max_pool((2, 3), stride=1), tanh": (max_pool((2, 3), 1), tanh()),
    "max_pool(2x3, stride 1, padding 1x0)": (max_pool((2, 3), 1, (1, 0)),),
    "avg_pool(2, stride (2, 1)) -> sum(channels, keepdim=True)": (
        avg_pool(2, (2, 1)),
        sum("channels", keepdim=True),
    ),
    "softmax(channels), softmax('space')": (softmax("channels"), softmax("space")),
    "softmax((2, 3)), log_softmax(-1)": (softmax((2, 3)), log_softmax(-1)),
    "max_pool(2x3, dilation 2, ceil_mode=True)": (max_pool((2, 3), dilation=2, ceil_mode=True),),
    "adaptive_avg_pool((None, 3)) -> flatten": (adaptive_avg_pool((None, 3)), flatten()),
    "layer_norm((4, 5), w) -> rms_norm(channels)": (
        layer_norm((4, 5), "w"),
        rms_norm("channels"),
    ),
    "cat(skip, first=True) -> pixel_shuffle(2)": (cat("skip", True), pixel_shuffle(2)),
    "add(shift), scale('gain')": (add("shift"), scale("gain")),
    "scale(-0.5)": (scale(-0.5),),
    "group_norm(8, group_norm.weight, bias=b, eps=1e-3)": (
        group_norm(8, "group_norm.weight", "b", 1e-3),
    ),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_written(text: str) -> None:
    assert parse(text) == WRITTEN[text]


REDUCTIONS = (sum, mean, amax, amin, logsumexp)
EVERY: tuple[Stage, ...] = (
    add(2),
    add("term"),
    scale(0.5),
    clamp(-1.0, 1e-8),
    clamp("low", "high"),
    sigmoid(),
    tanh(),
    softmax("channels"),
    softmax("space"),
    softmax((2, 3)),
    log_softmax("all"),
    log_softmax(-1),
    sum("channels", keepdim=True),
    *(make(dim) for make in REDUCTIONS for dim in ("space", "all", 1, -2, (1, 3))),
    *(make((2, -1), keepdim=True) for make in REDUCTIONS),
    max_pool(2),
    max_pool(3, 2, 1, 2, True),
    max_pool((3, 3), dilation=(1, 2)),
    avg_pool(3, 2, 1, True, False, 7),
    avg_pool(2, count_include_pad=False),
    lp_pool(2, 3),
    lp_pool(1.5, (2, 3), 1, True),
    adaptive_avg_pool(None),
    adaptive_avg_pool((None, 3)),
    adaptive_max_pool(2),
    batch_norm("m", "v"),
    batch_norm(weight="w", bias="b", training=True, eps=0.1),
    instance_norm(),
    instance_norm("m", "v", "w", "b", False),
    instance_norm(weight="w", eps=0.5),
    layer_norm(7),
    layer_norm((4, 5), "w", "b", 0.1),
    layer_norm("channels", bias="b"),
    rms_norm((4, 5), "w"),
    rms_norm("channels", eps=0.25),
    flatten(),
    flatten(2, -2),
    squeeze(1),
    squeeze((1, -1)),
    pixel_shuffle(3),
    cat("skip"),
    cat("skip", True, 5),
    max_pool((2, 3), (1, 2), 1),
    avg_pool("window"),
    avg_pool(3, padding=1),
    group_norm(8),
    group_norm(8, "weight", "bias"),
    group_norm("groups", bias="b", eps=1e-3),
    gelu("tanh"),
    pow(-3),
    *(
        made(*(key for key, default in made.parameters.items() if default is Parameter.empty))
        for made in KNOWN.values()
        if isinstance(made, Function)
    ),
)


@pytest.mark.parametrize("stage", EVERY, ids=str)
def test_what_is_printed_parses_back(stage: Stage) -> None:
    assert parse(str(stage)) == (stage,)


def test_every_stage_is_known() -> None:
    named = {each.name.partition("(")[0] for each in EVERY}
    assert named | {"conv_transpose", "gelu"} == {*KNOWN}
    assert {*KNOWN} == {name for name in stages.__all__ if name.islower()} - {"pointwise"}


def test_a_chain_parses_where_the_rank_is_known() -> None:
    printed = "avg_pool(2) -> conv_transpose2d(+ conv_bias) -> add(bias)"
    assert parse(printed, 2) == (avg_pool(2), ConvTranspose(2, "conv_bias"), add("bias"))
    assert parse("conv_transpose", 3) == (ConvTranspose(3),)


KNOWN_STAGES = f"known: {', '.join(name for name in KNOWN if name != 'conv_transpose')}"
BAD: dict[str, str] = {
    "lrn": f"unknown stage 'lrn'; {KNOWN_STAGES}",
    "sigmoid, tanhh": f"unknown stage 'tanhh'; did you mean 'tanh'? {KNOWN_STAGES}",
    "": "'' is no list of stages; they read like 'sigmoid, clamp(-1, 1)'",
    "sigmoid tanh": "'sigmoid tanh' is no list of stages",
    "clamp(0, 1": "'clamp(0, 1' is no list of stages",
    "3": "'3' is not a stage; they read like 'clamp(-1, 1)'",
    "max_pool(2)(3)": "'max_pool(2)(3)' is not a stage",
    "scale()": "'scale()': missing a required argument: 'factor'; scale takes factor",
    "sigmoid(1)": "'sigmoid(1)': too many positional arguments; sigmoid takes nothing",
    "group_norm(8, gamma=g)": "got an unexpected keyword argument 'gamma'; group_norm takes "
    "num_groups, weight=None, bias=None, eps=",
    "add(-bias)": "'add(-bias)': '-bias' is neither a number nor a name",
    "add(b[0])": "'b[0]' is neither a number nor a name",
    "add((1, 2))": "'add((1, 2))': add: other must be",
    "group_norm(8, eps=small)": "'group_norm(8, eps=small)': ",
    "softmax(batch)": "softmax goes over 'channels', 'space', 'all' or axes by number, not 'batch'",
    "sum(0)": "sum: dim=0 holds the samples' axis (0)",
    "layer_norm(space)": "layer_norm: normalized_shape must be the sizes of the last axes or",
    "cat": "missing a required argument: 'skip'; cat takes skip, first=False, channels=None",
    "flatten(start)": "flatten start_dim must be an integer, not str",
    "conv_transpose": "conv_transpose is the convolution itself, not a stage before or after it",
    "__import__('os').system('false')": "is not a stage",
    "add(__import__('os').system('false'))": "is neither a number nor a name",
    "(lambda: 1)()": "is not a stage",
    "add(" * 5000: "is no list of stages",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:30])
def test_what_is_wrong_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(BAD[text])):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv_transpose3d", "conv_transpose3d does not fit a problem line of 2 spatial axes"),
        ("conv_transpose(2)", "of the convolution only its bias is written here"),
        ("conv_transpose(bias=b)", "as in 'conv_transpose(+ bias)'"),
        ("conv_transpose2d(+ 3)", "of the convolution only its bias is written here"),
    ],
)
def test_what_is_wrong_with_a_convolution_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text, 2)
