"""Problem: the geometry of one call, as plain integers and names.

It prints as one line and parses back, so any failure is reproduced by pasting it::

    n8 ci64 co64 i512x512 k3x7 s1 p0 fp32 cuda:sm90
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from transfuse import plain
from transfuse.geometry import FARTHEST, LARGEST, MOST, Axis, at_least, bounded, in_torch

DTYPES = ("fp32", "fp64", "fp16", "bf16")
LAYOUTS = ("contiguous", "channels_last", "strided")
PRECISIONS = ("ieee", "tf32")
AXES = {1: ("width",), 2: ("height", "width"), 3: ("depth", "height", "width")}


class Shape(NamedTuple):
    """The shape of the tensor between two stages."""

    n: int
    c: int
    spatial: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.spatial)

    @property
    def positions(self) -> int:
        """Positions of one channel of one sample."""
        return prod(self.spatial)

    @property
    def numel(self) -> int:
        return self.n * self.c * self.positions


@dataclass(frozen=True)
class Problem:
    """Sizes and options of a transposed convolution, element type, layout, device and precision.

    Illegal values raise when the Problem is built, with torch's exception type and the numbers in
    the message. It prints as one line, which :meth:`parse` reads.

    Args:
        batch: samples
        in_channels: channels of the input
        out_channels: channels of the convolution's output
        spatial: sizes of the tensor that the caller hands in; where pooling comes first, the
            convolution's own are ``chain.core(problem).spatial``
        kernel: sizes of the kernel
        stride: one for each axis
        padding: one for each axis, of either sign
        dilation: one for each axis
        output_padding: one for each axis, of either sign: with ``padding`` it says that the two
            ends of an axis are padded unequally. ``expect_in_torch`` refuses what torch refuses
        groups: channels fall apart into so many convolutions. Default: 1
        dtype: element type: ``fp16``, ``bf16``, ``fp32`` or ``fp64``. Default: ``fp32``
        layout: ``contiguous``, ``channels_last`` or ``strided``. Default: ``contiguous``
        device: such as ``cpu`` or ``cuda:sm90``. Default: ``cpu``
        precision: how float32 is multiplied: ``ieee``, or on CUDA ``tf32``, with 10 bits of each
            factor. The other types have one arithmetic each, and it stays ``ieee``. Default:
            ``ieee``

    Example::

        >>> problem = Problem.parse("n8 ci64 co32 i32x32 k4 s2 p1")
        >>> problem.stride, problem.output().dims
        ((2, 2), (8, 32, 64, 64))
        >>> print(problem)
        n8 ci64 co32 i32x32 k4 s2 p1 fp32 cpu
    """

    batch: int
    in_channels: int
    out_channels: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int = 1
    dtype: str = "fp32"
    layout: str = "contiguous"
    device: str = "cpu"
    precision: str = "ieee"

    @property
    def arithmetic(self) -> str:
        """What is multiplied: the element type, or ``tf32``."""
        return "tf32" if self.precision == "tf32" else self.dtype

    @property
    def known(self) -> bool:
        """Whether all sizes are numbers, not what a tracer has in place of them."""
        return plain.known((self.batch, self.in_channels, self.out_channels, *self.spatial))

    @property
    def rank(self) -> int:
        return len(self.spatial)

    @property
    def axes(self) -> tuple[Axis, ...]:
        options = (self.kernel, self.stride, self.padding, self.dilation, self.output_padding)
        return tuple(Axis(*axis) for axis in zip(self.spatial, *options, strict=True))

    @property
    def in_torch(self) -> bool:
        """Whether torch takes its padding and output padding."""
        return all(map(in_torch, self.stride, self.padding, self.dilation, self.output_padding))

    @property
    def input(self) -> Shape:
        return Shape(self.batch, self.in_channels, self.spatial)

    @property
    def weight(self) -> tuple[int, ...]:
        """The shape of the kernel tensor."""
        return (self.in_channels, self.out_channels // self.groups, *self.kernel)

    def output(self) -> Shape:
        """The convolution's output; raises where it would be empty, or beyond any memory."""
        conv = f"conv_transpose{self.rank}d"
        for name, axis in zip(AXES[self.rank], self.axes, strict=True):
            if axis.size < 1:
                raise RuntimeError(f"{conv} would give an empty output: {name} {_too_few(axis)}")
        found = Shape(self.batch, self.out_channels, tuple(axis.size for axis in self.axes))
        expect_addressable(f"{conv}: input", self.input.dims)
        expect_addressable(f"{conv}: weight", self.weight)
        expect_addressable(f"{conv}: output", found.dims)
        if prod(self.kernel) > LARGEST:
            raise RuntimeError(
                f"{conv}: kernel of shape {list(self.kernel)} has {prod(self.kernel)} taps, "
                f"more than {LARGEST} (2^31 - 1)"
            )
        return found

    def at(self, spatial: tuple[int, ...]) -> "Problem":
        """The same problem on an input of another size."""
        return self if spatial == self.spatial else replace(self, spatial=spatial)

    def flops(self, needed: tuple[int, ...] | None = None) -> int:
        """Multiply-adds counted twice: 2 * B * Ci * Co/groups * valid (input, tap) pairs."""
        extents = needed or tuple(axis.size for axis in self.axes)
        pairs = prod(a.pairs(n) for a, n in zip(self.axes, extents, strict=True))
        return 2 * self.batch * self.in_channels * (self.out_channels // self.groups) * pairs

    def __post_init__(self) -> None:
        _validate(self)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles go without the hash: it is another in another process."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @cached_property
    def _hash(self) -> int:
        values = (self.spatial, self.kernel, self.stride, self.padding, self.dilation)
        return hash((self.batch, self.in_channels, self.out_channels, self.dtype, *values))

    def __str__(self) -> str:
        tokens = [f"n{self.batch}", f"ci{self.in_channels}", f"co{self.out_channels}"]
        tokens.append("i" + "x".join(map(str, self.spatial)))
        for key, values, default in (
            ("k", self.kernel, None),
            ("s", self.stride, None),
            ("p", self.padding, None),
            ("d", self.dilation, 1),
            ("op", self.output_padding, 0),
        ):
            if any(v != default for v in values):
                same = len(set(values)) == 1
                tokens.append(key + (str(values[0]) if same else "x".join(map(str, values))))
        if self.groups != 1:
            tokens.append(f"g{self.groups}")
        tokens.append(self.dtype)
        if self.precision != "ieee":
            tokens.append(self.precision)
        if self.layout != "contiguous":
            tokens.append(self.layout)
        tokens.append(self.device)
        return " ".join(tokens)

    @classmethod
    def parse(cls, line: str) -> "Problem":
        """The Problem a line stands for; ``n ci co i k`` are required, the rest has defaults."""
        fields = _tokens(line)
        missing = [key for key in ("n", "ci", "co", "i", "k") if key not in fields]
        if missing:
            raise ValueError(f"problem line lacks {', '.join(missing)}: {line!r}")
        spatial = fields["i"]
        rank = len(spatial)
        if rank not in AXES:
            raise ValueError(f"i needs 1 to 3 sizes, such as i64x64, but {line!r} has {rank}")

        def axes(key: str, default: int) -> tuple[int, ...]:
            values: tuple[int, ...] = fields.get(key, (default,))
            if len(values) not in (1, rank):
                raise ValueError(f"{key} needs 1 or {rank} values in {line!r}, not {len(values)}")
            return values * rank if len(values) == 1 else values

        return cls(
            fields["n"],
            fields["ci"],
            fields["co"],
            spatial,
            axes("k", 1),
            axes("s", 1),
            axes("p", 0),
            axes("d", 1),
            axes("op", 0),
            fields.get("g", 1),
            fields.get("dtype", "fp32"),
            fields.get("layout", "contiguous"),
            fields.get("device", "cpu"),
            fields.get("precision", "ieee"),
        )


def _too_few(axis: Axis) -> str:
    """How an axis comes to have no outputs."""
    if axis.in_torch:
        return (
            f"({axis.n}-1)*{axis.stride} - 2*{axis.padding} + "
            f"{axis.dilation}*({axis.k}-1) + {axis.output_padding} + 1 = {axis.size}; "
            f"padding may be at most {(axis.size + 2 * axis.padding - 1) // 2} here"
        )
    return (
        f"({axis.n}-1)*{axis.stride} + {axis.dilation}*({axis.k}-1) + 1 - {axis.padding} "
        f"- {axis.padding - axis.output_padding} = {axis.size}; padding before and after may be "
        f"at most {axis.grid - 1} together here"
    )


def expect_in_torch(p: Problem) -> None:
    """Refuse a padding and an output padding that torch refuses, as torch does."""
    conv = f"conv_transpose{p.rank}d"
    bounded(conv, "padding", p.padding, LARGEST, 0)
    bounded(conv, "output_padding", p.output_padding, LARGEST, 0)
    for name, axis in zip(AXES[p.rank], p.axes, strict=True):
        if not axis.in_torch:
            raise RuntimeError(
                f"{conv}: output_padding must be smaller than either stride or dilation, but "
                f"{name} has output_padding={axis.output_padding}, stride={axis.stride}, "
                f"dilation={axis.dilation}; legal: 0 to {max(axis.stride, axis.dilation) - 1}"
            )


def expect_addressable(name: str, dims: tuple[int, ...]) -> None:
    """Refuse a tensor of more elements than memory can hold; a size of 0 hides nothing.

    Sizes that a tracer has symbols for are left to whoever allocates.
    """
    if not plain.known(dims):
        return
    elements = prod(max(1, size) for size in dims)
    if elements > MOST:
        raise RuntimeError(
            f"{name} of shape {list(dims)} needs {elements} elements, more than the {MOST} (2^48) "
            "that a tensor may have"
        )


def arithmetics(device: str) -> tuple[str, ...]:
    """The arithmetics of a device by name: the element types, and on CUDA ``tf32``."""
    return (*DTYPES, "tf32") if on_cuda(device) else DTYPES


def on_cuda(device: str) -> bool:
    """Whether a device's name is that of a CUDA one, such as ``cuda:sm90``."""
    return device.partition(":")[0] == "cuda"


_NUMBER = r"(n|ci|co|g|i|k|s|d)(\d+(?:x\d+)*)|(p|op)(-?\d+(?:x-?\d+)*)"
_DEVICE = r"cpu|cuda|meta|mps|xpu|[a-z]+:\w+"
_SINGLE = ("n", "ci", "co", "g")


def _tokens(line: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for token in line.split():
        number = re.fullmatch(_NUMBER, token)
        if number:
            key, values = (each for each in number.groups() if each is not None)
            values = tuple(map(int, values.split("x")))
            if key in _SINGLE and len(values) != 1:
                raise ValueError(f"{key} takes one number, not {token!r}")
            value: Any = values[0] if key in _SINGLE else values
        elif token in DTYPES:
            key, value = "dtype", token
        elif token == "tf32":
            key, value = "precision", token
        elif token in LAYOUTS:
            key, value = "layout", token
        elif re.fullmatch(_DEVICE, token):
            key, value = "device", token
        else:
            raise ValueError(
                f"unknown word {token!r} in problem line {line!r}; "
                "a line reads like 'n8 ci64 co64 i512x512 k3x7 s1 p0 fp32 cpu'"
            )
        if key in fields:
            raise ValueError(f"{key} is given twice in problem line {line!r}")
        fields[key] = value
    return fields


_SIZES = ("batch", "in_channels", "out_channels", "spatial size", "kernel")


def _validate(p: Problem) -> None:
    conv = f"conv_transpose{p.rank}d"
    if p.rank not in AXES:
        raise RuntimeError(f"spatial must have 1 to 3 sizes, but got spatial={list(p.spatial)}")
    for name in ("kernel", "stride", "padding", "dilation", "output_padding"):
        values = getattr(p, name)
        if len(values) != p.rank:
            raise RuntimeError(f"{conv}: {name} must have {p.rank} values, but got {list(values)}")
    for name, known in (("dtype", DTYPES), ("layout", LAYOUTS), ("precision", PRECISIONS)):
        if getattr(p, name) not in known:
            raise ValueError(f"unknown {name} {getattr(p, name)!r}; known: {', '.join(known)}")
    if p.precision == "tf32" and not (p.dtype == "fp32" and on_cuda(p.device)):
        raise ValueError(f"precision tf32 is for fp32 on cuda, not for {p.dtype} on {p.device}")

    limits: dict[str, tuple[tuple[int, ...], int, int]] = {
        "groups": ((p.groups,), 1, MOST),  # first: out_channels may be a multiple of it
        "batch": ((p.batch,), 0, MOST),
        "in_channels": ((p.in_channels,), 1, MOST),
        "out_channels": ((p.out_channels,), 1, MOST),
        "spatial size": (p.spatial, 1, MOST),
        "kernel": (p.kernel, 1, MOST),
        "stride": (p.stride, 1, LARGEST),
        "padding": (p.padding, -LARGEST, LARGEST),
        "dilation": (p.dilation, 1, LARGEST),
        "output_padding": (p.output_padding, -FARTHEST, FARTHEST),
    }
    # Sizes that a tracer has symbols for stay open upwards: whoever allocates has the last word.
    still_open = () if p.known else _SIZES
    for name, (values, _, most) in limits.items():
        if name not in still_open:
            bounded(conv, name, values, most)
    for name, (values, least, most) in limits.items():
        if name in still_open:
            at_least(conv, name, values, least)
        else:
            bounded(conv, name, values, most, least)
    for name, count in (("in_channels", p.in_channels), ("out_channels", p.out_channels)):
        if count % p.groups:
            raise RuntimeError(f"{conv}: groups={p.groups} does not divide {name}={count}")
