"""Stages over axes: what is left of all values along some of them, and softmax.

Axes are data: over the channels of a position, over all positions, or any others. What an engine
makes of them it asks by ``axes``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

from torch import Tensor

from transfuse.maths import exp, log
from transfuse.maths.expr import X
from transfuse.maths.expr import name as symbol
from transfuse.problem import Shape
from transfuse.stages.actions import OverChannels, OverSpace
from transfuse.stages.axes import WORDS, Dim, expect_dim, resolved
from transfuse.stages.base import Env, Kind, Stage
from transfuse.stages.walk import Walk
from transfuse.sweeps import Folding


@dataclass(frozen=True)
class Axes(Stage):
    """A stage that sees all values along the axes ``dim``."""

    dim: Dim = field(metadata={"words": WORDS})

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_dim(self.name, self.dim)

    def axes(self, rank: int) -> tuple[int, ...]:
        """Those it goes over, in order: 1 are the channels, space follows."""
        return resolved(self.name, self.dim, rank)

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        over = self.axes(len(full))
        return tuple(
            size if axis in over else extent
            for axis, (extent, size) in enumerate(zip(extents, full, strict=True), 2)
        )

    def scope(self, shape: Shape) -> int:
        return prod([shape.dims[axis] for axis in self.axes(len(shape.spatial))])


_TORCH: dict[str, Callable[..., Tensor]] = {
    "sum": Tensor.sum,
    "mean": Tensor.mean,
    "amax": Tensor.amax,
    "amin": Tensor.amin,
    "logsumexp": Tensor.logsumexp,
}
_FOLDINGS: dict[str, Folding] = {
    "sum": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "logsumexp": "logsumexp",
}


@dataclass(frozen=True)
class Reduce(Axes):
    """``y = sum, mean, amax, amin or logsumexp of all x along dim``; made by functions so called.

    Between stages these axes stay, with size 1; ``keepdim`` says whether the result has them.
    """

    keepdim: bool = False
    made: str = field(default="sum", metadata={"names": True, "words": tuple(_TORCH)})

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.made

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.made in ("sum", "amax", "amin")

    @property
    def reshapes(self) -> bool:  # type: ignore[override]
        return not self.keepdim

    def sees(self, rank: int) -> Kind:
        return Kind.CHANNEL if self.axes(rank) == (1,) else Kind.AXES

    def shape(self, shape: Shape) -> Shape:
        over = self.axes(len(shape.spatial))
        n, c, *spatial = (1 if axis in over else n for axis, n in enumerate(shape.dims))
        return Shape(n, c, tuple(spatial))

    def form(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        over = () if self.keepdim else self.axes(len(dims) - 2)
        return tuple(n for axis, n in enumerate(dims) if axis not in over)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return _TORCH[self.made](x, self.axes(x.dim() - 2), self.keepdim)

    def action(self, shape: Shape) -> OverChannels | None:
        summed = self.made == "sum" and self.axes(len(shape.spatial)) == (1,)
        return OverChannels("sum") if summed else None

    def sweep(self, walk: Walk) -> None:
        walk.reduce(_FOLDINGS[self.made], self.axes(len(walk.shape.spatial)))


@dataclass(frozen=True)
class Softmax(Axes):
    """``y = exp(x - m) / sum exp(x - m)``, ``m = max x``, over all x along dim; or its logarithm.

    ``bounded``: a rewrite knows that no exponent can overflow or vanish, so nothing is taken off.
    """

    log: bool = False
    bounded: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        return "log_softmax" if self.log else "softmax"

    def sees(self, rank: int) -> Kind:
        known = {(1,): Kind.CHANNEL, tuple(range(2, rank + 2)): Kind.WHOLE}
        return known.get(self.axes(rank), Kind.AXES) if not self.log else Kind.AXES

    def shape(self, shape: Shape) -> Shape:
        self.axes(len(shape.spatial))  # raises where there are none such
        return shape

    def apply(self, x: Tensor, env: Env) -> Tensor:
        over = self.axes(x.dim() - 2)
        if over == (1,) and not self.bounded:
            return x.log_softmax(1) if self.log else x.softmax(1)
        # torch.softmax adds the terms one after another and is off by 5e-5 over 131,072
        # positions; sum() adds them pairwise and is off by 2e-7.
        less = x if self.bounded else x - x.detach().amax(over, keepdim=True)
        terms = less.exp()
        total = terms.sum(over, keepdim=True)
        return less - total.log() if self.log else terms / total

    def unshifted(self) -> "Softmax | None":
        return None if self.bounded else replace(self, bounded=True)

    def action(self, shape: Shape) -> OverChannels | OverSpace | None:
        sees = self.sees(len(shape.spatial))
        if sees is Kind.CHANNEL:
            return OverChannels("softmax")
        return OverSpace(self.bounded) if sees is Kind.WHOLE else None

    def sweep(self, walk: Walk) -> None:
        over = self.axes(len(walk.shape.spatial))
        m, s = symbol("m"), symbol("s")
        if self.bounded:
            walk.map(exp(X))
            (total,) = walk.fold("sum", over)
            walk.map(X / s, {"s": total})
            return
        top, total = walk.fold("exponentials", over)
        walk.map(X - m - log(s) if self.log else exp(X - m) / s, {"m": top, "s": total})

    def __str__(self) -> str:
        return f"{self.name}({self.dim}{', bounded' if self.bounded else ''})"


def sum(dim: Dim, keepdim: bool = False) -> Reduce:
    r"""The sum of all values along some axes, as ``torch.sum``.

    .. math:: y = \sum_{\mathrm{dim}} x

    Args:
        dim: an axis or several, counted as torch does, or one of the words ``"channels"``,
            ``"space"`` (all positions) and ``"all"`` (both). Samples are never mixed.
        keepdim: whether these axes stay, with size 1. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without the axes ``dim``, or with 1 in their place

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[sum("channels")]).shape
        torch.Size([2, 7, 7])
        >>> conv_transpose(x, w, then=[sum((2, 3), keepdim=True)]).shape
        torch.Size([2, 8, 1, 1])
    """
    return Reduce(dim, keepdim, "sum")


def mean(dim: Dim, keepdim: bool = False) -> Reduce:
    r"""The mean of all values along some axes, as ``torch.mean``.

    .. math:: y = \frac{1}{n} \sum_{\mathrm{dim}} x

    ``mean("space", keepdim=True)`` is global average pooling.

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.
        keepdim: whether these axes stay, with size 1. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without the axes ``dim``, or with 1 in their place

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[mean("space", keepdim=True)]).shape
        torch.Size([2, 8, 1, 1])
    """
    return Reduce(dim, keepdim, "mean")


def amax(dim: Dim, keepdim: bool = False) -> Reduce:
    r"""The largest value along some axes, as ``torch.amax``; NaN wins.

    .. math:: y = \max_{\mathrm{dim}} x

    ``amax("space", keepdim=True)`` is global max pooling.

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.
        keepdim: whether these axes stay, with size 1. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without the axes ``dim``, or with 1 in their place

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[amax("all")]).shape
        torch.Size([2])
    """
    return Reduce(dim, keepdim, "amax")


def amin(dim: Dim, keepdim: bool = False) -> Reduce:
    r"""The smallest value along some axes, as ``torch.amin``; NaN wins.

    .. math:: y = \min_{\mathrm{dim}} x

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.
        keepdim: whether these axes stay, with size 1. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without the axes ``dim``, or with 1 in their place

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[amin(1)]).shape
        torch.Size([2, 7, 7])
    """
    return Reduce(dim, keepdim, "amin")


def logsumexp(dim: Dim, keepdim: bool = False) -> Reduce:
    r"""The logarithm of the summed exponentials along some axes, as ``torch.logsumexp``.

    .. math:: y = \log \sum_{\mathrm{dim}} e^x

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.
        keepdim: whether these axes stay, with size 1. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same without the axes ``dim``, or with 1 in their place

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[logsumexp(-1)]).shape
        torch.Size([2, 8, 7])
    """
    return Reduce(dim, keepdim, "logsumexp")


def softmax(dim: Dim) -> Softmax:
    r"""Softmax over some axes together, as ``torch.softmax`` over one.

    .. math:: y = \frac{e^{x - m}}{\sum_{\mathrm{dim}} e^{x - m}},\quad m = \max_{\mathrm{dim}} x

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[softmax("space")])
        >>> bool((y.sum((2, 3)) - 1).abs().max() < 1e-5)
        True
    """
    return Softmax(dim)


def log_softmax(dim: Dim) -> Softmax:
    r"""The logarithm of ``softmax``, as ``torch.log_softmax``, also where that is tiny.

    .. math:: y = x - m - \log \sum_{\mathrm{dim}} e^{x - m},\quad m = \max_{\mathrm{dim}} x

    Args:
        dim: an axis or several, or ``"channels"``, ``"space"`` or ``"all"``, as in ``sum``.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[log_softmax("channels")])
        >>> bool((y.exp().sum(1) - 1).abs().max() < 1e-5)
        True
    """
    return Softmax(dim, log=True)
