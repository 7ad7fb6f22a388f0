"""Stages that move values and compute none: the form of the result, space out of channels, cat."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from transfuse.problem import Shape, expect_addressable
from transfuse.stages.axes import wrapped
from transfuse.stages.base import Env, Kind, Operand, Stage, parameter
from transfuse.stages.walk import Given, Walk


@dataclass(frozen=True)
class Flatten(Stage):
    """``y = x`` with the axes from ``start_dim`` to ``end_dim`` as one."""

    kind: ClassVar[Kind] = Kind.FORM
    name: ClassVar[str] = "flatten"
    exact: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True
    start_dim: int = 1
    end_dim: int = -1

    def form(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        (first,), (last,) = (
            wrapped((self.start_dim,), len(dims)),
            wrapped((self.end_dim,), len(dims)),
        )
        if first > last:
            raise RuntimeError(
                f"flatten: start_dim={self.start_dim} cannot come after end_dim={self.end_dim}, "
                f"as of {len(dims)} axes it does"
            )
        if first == 0:
            raise ValueError(
                f"flatten: start_dim={self.start_dim} is the samples' axis, "
                "and samples are never mixed"
            )
        return (*dims[:first], prod(dims[first : last + 1]), *dims[last + 1 :])

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)

    def sweep(self, walk: Walk) -> None:
        """Nothing: the values stay where they are."""


@dataclass(frozen=True)
class Squeeze(Stage):
    """``y = x`` without those of the axes ``dim`` that have size 1."""

    kind: ClassVar[Kind] = Kind.FORM
    name: ClassVar[str] = "squeeze"
    exact: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True
    dim: int | tuple[int, ...]

    def form(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        given = self.dim if isinstance(self.dim, tuple) else (self.dim,)
        axes = wrapped(given, len(dims))
        if 0 in axes:
            raise ValueError(
                f"squeeze: dim={self.dim} holds the samples' axis (0), which always stays"
            )
        return tuple(n for axis, n in enumerate(dims) if axis not in axes or n != 1)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x.squeeze(self.dim)

    def sweep(self, walk: Walk) -> None:
        """Nothing: the values stay where they are."""


@dataclass(frozen=True)
class PixelShuffle(Stage):
    """``y[n, c, s * r + i] = x[n, c * r**axes + i, s]``, ``r = upscale_factor``, along every axis.

    ``i`` counts the places of one block of ``r`` along each axis, the last one fastest.
    """

    kind: ClassVar[Kind] = Kind.AXES
    name: ClassVar[str] = "pixel_shuffle"
    exact: ClassVar[bool] = True
    upscale_factor: int

    def shape(self, shape: Shape) -> Shape:
        factor = self.upscale_factor
        if factor < 1:
            raise RuntimeError(f"pixel_shuffle expects a positive upscale_factor, but got {factor}")
        cells = factor ** len(shape.spatial)
        if shape.c % cells:
            raise RuntimeError(
                f"pixel_shuffle expects its input's channels to be divisible by "
                f"upscale_factor**{len(shape.spatial)}, but {shape.c} is not divisible by {cells}"
            )
        found = Shape(shape.n, shape.c // cells, tuple(n * factor for n in shape.spatial))
        expect_addressable("pixel_shuffle: output", found.dims)
        return found

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-extent // self.upscale_factor) for extent in extents)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        factor, rank = self.upscale_factor, x.dim() - 2
        n, _, *space = x.shape
        parts = x.reshape(n, -1, *(factor,) * rank, *space)
        # Each axis of space is followed by its places within a block.
        places = (axis for each in range(rank) for axis in (2 + rank + each, 2 + each))
        y = parts.permute(0, 1, *places)
        return y.reshape(n, y.shape[1], *(factor * size for size in space))

    def sweep(self, walk: Walk) -> None:
        walk.shuffle(self.upscale_factor)


@dataclass(frozen=True)
class Cat(Stage):
    """``y = x and skip side by side along the channels``, skip before x where it is ``first``."""

    kind: ClassVar[Kind] = Kind.AXES
    name: ClassVar[str] = "cat"
    exact: ClassVar[bool] = True
    skip: Operand = parameter(Tensor)
    first: bool = False
    channels: int | None = None

    def fitted(self, shapes: Mapping[str, tuple[int, ...]], rank: int) -> "Cat":
        dims = shapes.get(self.skip) if isinstance(self.skip, str) else None
        if dims is None or self.channels is not None:
            return self
        if len(dims) != rank + 2:
            raise RuntimeError(
                f"cat: expected {self.skip} of {rank + 2} axes, as the values have, "
                f"but got {list(dims)}"
            )
        return replace(self, channels=dims[1])

    @property
    def sampled(self) -> tuple[str, ...]:
        return self.operands

    def dims(self, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name in self.operands:
            yield name, (shape.n, self._channels, *shape.spatial)

    @property
    def _channels(self) -> int:
        if self.channels is None and isinstance(self.skip, Tensor):
            return self.skip.shape[1]
        if self.channels is None:
            raise RuntimeError(
                f"cat: it is not known how many channels {self.skip} has; give channels="
            )
        return self.channels

    def shape(self, shape: Shape) -> Shape:
        found = shape._replace(c=shape.c + self._channels)
        expect_addressable("cat: output", found.dims)
        return found

    def apply(self, x: Tensor, env: Env) -> Tensor:
        assert isinstance(self.skip, str)
        skip = env[self.skip]
        return torch.cat((skip, x) if self.first else (x, skip), 1)

    def sweep(self, walk: Walk) -> None:
        assert isinstance(self.skip, str)
        axes = tuple(range(len(walk.shape.dims)))
        walk.cat(Given(self.skip, axes), self._channels, self.first)


def flatten(start_dim: int = 1, end_dim: int = -1) -> Flatten:
    r"""Neighbouring axes of the result as one, as ``torch.flatten``; at the end of a chain.

    .. math:: (N, C, H, W) \to (N, C \cdot H \cdot W)

    Args:
        start_dim: the first of them; not the samples'. Default: 1
        end_dim: the last. Default: -1

    Shape:
        - x: :math:`(N, C, *)`
        - y: one axis for those from ``start_dim`` to ``end_dim``

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``. Behind it stand only others
        of its kind, and stages of single elements with numbers alone.

    Example::

        >>> conv_transpose(x, w, then=[flatten()]).shape
        torch.Size([2, 392])
    """
    return Flatten(start_dim, end_dim)


def squeeze(dim: int | tuple[int, ...]) -> Squeeze:
    r"""The result without axes of size 1, as ``torch.squeeze``; at the end of a chain.

    .. math:: (N, 1, H, W) \to (N, H, W)

    Args:
        dim: an axis or several, not the samples'; those of another size stay.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without those of the axes ``dim`` that have size 1

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``. Behind it stand only others
        of its kind, and stages of single elements with numbers alone.

    Example::

        >>> conv_transpose(x, w, then=[mean("space", keepdim=True), squeeze((2, 3))]).shape
        torch.Size([2, 8])
    """
    return Squeeze(dim)


def pixel_shuffle(upscale_factor: int) -> PixelShuffle:
    r"""Space out of channels, as ``torch.nn.functional.pixel_shuffle``, for 1 to 3 spatial axes.

    .. math:: y_{n, c, h r + i, w r + j} = x_{n, (c r + i) r + j, h, w}

    Args:
        upscale_factor: the factor r along each spatial axis.

    Shape:
        - x: :math:`(N, C r^2, H, W)`, and :math:`r` or :math:`r^3` times the channels for one or
          three axes
        - y: :math:`(N, C, H r, W r)`

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[pixel_shuffle(2)]).shape
        torch.Size([2, 2, 14, 14])
    """
    return PixelShuffle(upscale_factor)


def cat(skip: Operand, first: bool = False, channels: int | None = None) -> Cat:
    r"""The values and another tensor side by side along the channels, as ``torch.cat``.

    .. math:: y = (x_1, \dots, x_C, \mathrm{skip}_1, \dots)

    Args:
        skip: a tensor with samples and space of x, or the name that a call gives it under.
        first: whether it comes before x. Default: ``False``
        channels: those of ``skip``, where no tensor tells. Default: its own

    Shape:
        - x: :math:`(N, C, *)`, skip: :math:`(N, C', *)`, both without N where the input has none
        - y: :math:`(N, C + C', *)`

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[cat(torch.zeros(2, 3, 7, 7))]).shape
        torch.Size([2, 11, 7, 7])
    """
    return Cat(skip, first, channels)
