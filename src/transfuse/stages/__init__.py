"""The stages a chain is made of, under the names in which chains are written.

>>> from transfuse.stages import group_norm, sigmoid, softmax
"""

from typing import Literal

from transfuse.stages.base import Env, Kind, Number, Operand, Stage
from transfuse.stages.channel import ChannelSoftmax, ChannelSum
from transfuse.stages.convolution import ConvTranspose
from transfuse.stages.pointwise import Add, Clamp, Scale, Sigmoid, Tanh
from transfuse.stages.whole import BatchNorm, GroupNorm, SpaceSoftmax
from transfuse.stages.window import AvgPool, MaxPool

add = Add
avg_pool = AvgPool
batch_norm = BatchNorm
clamp = Clamp
conv_transpose = ConvTranspose
group_norm = GroupNorm
max_pool = MaxPool
scale = Scale
sigmoid = Sigmoid
tanh = Tanh


def softmax(over: Literal["channels", "space"]) -> ChannelSoftmax | SpaceSoftmax:
    """Softmax over the channels of each position, or over all positions of each channel."""
    if over not in ("channels", "space"):
        raise ValueError(f"softmax goes over 'channels' or 'space', not {over!r}")
    return ChannelSoftmax() if over == "channels" else SpaceSoftmax()


def sum(over: Literal["channels"]) -> ChannelSum:
    """Sum over the channels of each position."""
    if over != "channels":
        raise ValueError(f"sum goes over 'channels', not {over!r}")
    return ChannelSum()


__all__ = [
    "ConvTranspose",
    "Env",
    "Kind",
    "Number",
    "Operand",
    "Stage",
    "add",
    "avg_pool",
    "batch_norm",
    "clamp",
    "conv_transpose",
    "group_norm",
    "max_pool",
    "scale",
    "sigmoid",
    "softmax",
    "sum",
    "tanh",
]
