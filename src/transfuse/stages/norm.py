"""Norms: values less their mean, over their deviation. Which statistics these are is data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from inspect import signature
from math import prod
from numbers import Real
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import plain
from transfuse.geometry import integer
from transfuse.maths import rsqrt
from transfuse.maths.expr import X
from transfuse.maths.expr import name as symbol
from transfuse.problem import Shape
from transfuse.stages.actions import Normalize
from transfuse.stages.base import (
    Env,
    Kind,
    Operand,
    Stage,
    alike,
    called,
    channel,
    parameter,
    shown,
)
from transfuse.stages.running import Running
from transfuse.stages.walk import Given, Value, Walk

_OVER = ("batch", "groups", "channels")
_MADE = ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm")


@dataclass(frozen=True)
class Norm(Stage):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias``; made by the functions below.

    ``over`` is what one mean covers: ``"batch"``, a channel's values in all samples; ``"groups"``,
    those of a sample in one of ``num_groups`` groups of neighbouring channels (None: in each
    channel); ``"channels"``, those of a position; or the last axes, given by their sizes. Weight
    and bias are one value per channel, or of these sizes.

    Not ``centred``, the mean is left out and the mean square stands for the variance. Not
    ``training``, running statistics stand for those of the values, and where there are both, the
    running ones are moved towards them (see ``Running``).
    """

    mixes: ClassVar[bool] = True
    made: str = field(metadata={"names": True, "words": _MADE})
    over: str | tuple[int, ...] = field(metadata={"words": _OVER})
    num_groups: int | str | None = parameter(int, default=None)
    running_mean: Operand = parameter(Tensor, default=None)
    running_var: Operand = parameter(Tensor, default=None)
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    momentum: float = 0.1
    eps: float | None = 1e-5
    centred: bool = True
    training: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.made

    @property
    def running(self) -> Running | None:
        """What it moves."""
        names = self.running_mean, self.running_var
        return _running(*names, self.momentum) if self.training else None

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    @property
    def across_samples(self) -> bool:
        return self.over == "batch"

    @property
    def without_gradient(self) -> tuple[str, ...]:
        return tuple(n for n in (self.running_mean, self.running_var) if isinstance(n, str))

    def typed(self, compute: torch.dtype) -> "Norm":
        return replace(self, eps=torch.finfo(compute).eps) if self.eps is None else self

    def sees(self, rank: int) -> Kind:
        if not self.training:
            return Kind.POINTWISE
        moved = self.running_mean is not None
        whole = self.over == "batch" or (self.over == "groups" and not moved)
        return Kind.WHOLE if whole or self._one_group(rank) else Kind.AXES

    def groups(self, shape: Shape) -> int:
        """Groups of channels, each with its statistic in every sample, where it sees the whole."""
        if self.over != "groups":
            return 1
        return shape.c if self.num_groups is None else integer("num_groups", self.num_groups)

    def _one_group(self, rank: int) -> bool:
        """Whether it is over all of a sample with nothing to multiply by, as one group would be."""
        everything = isinstance(self.over, tuple) and len(self.over) == rank + 1
        return everything and self.centred and self.weight is None and self.bias is None

    def axes(self, rank: int) -> tuple[int, ...]:
        """What one statistic covers; of the channels perhaps a group."""
        space = range(2, rank + 2)
        if isinstance(self.over, tuple):
            return tuple(range(rank + 2 - len(self.over), rank + 2))
        grouped = space if self.num_groups is None else (1, *space)
        known = {"batch": (0, *space), "groups": grouped, "channels": (1,)}
        return tuple(known[self.over])

    def scope(self, shape: Shape) -> int:
        if not self.training:
            return 1
        covered = prod([shape.dims[axis] for axis in self.axes(len(shape.spatial))])
        return covered // (self.groups(shape) if self.num_groups is not None else 1)

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        over = self.axes(len(full)) if self.training else ()
        return tuple(
            size if axis in over else extent
            for axis, (extent, size) in enumerate(zip(extents, full, strict=True), 2)
        )

    def dims(self, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, dims in super().dims(shape):
            last = isinstance(self.over, tuple) and name in (self.weight, self.bias)
            yield name, self.over if last else dims  # type: ignore[misc]

    def shape(self, shape: Shape) -> Shape:
        if isinstance(self.over, tuple):
            self._expect_last(self.over, shape)
        groups = self.groups(shape)
        if groups < 1:
            raise RuntimeError(f"{self.name}: num_groups must be at least 1, but got {groups}")
        if shape.c % groups:
            raise RuntimeError(
                f"{self.name}: num_groups={groups} does not divide the {shape.c} channels"
            )
        if not self.training:
            return shape
        if self.made == "instance_norm" and shape.positions == 1:
            raise ValueError(
                f"{self.name}: expected more than 1 spatial element, got an input of "
                f"{list(shape.dims)}"
            )
        if self.over == "batch":
            _more_than_one_value(self.name, self.scope(shape), shape)
        elif self.num_groups is not None:
            _more_than_one_value(self.name, shape.n * self.scope(shape), shape)
        return shape

    def _expect_last(self, sizes: tuple[int, ...], shape: Shape) -> None:
        if len(sizes) > len(shape.spatial) + 1:
            raise ValueError(
                f"{self.name}: normalized_shape={list(sizes)} reaches the samples' axis of an "
                f"input of size {list(shape.dims)}, and samples are never mixed"
            )
        if shape.dims[-len(sizes) :] != sizes:
            expected = ", ".join(map(str, ("*", *sizes)))
            raise RuntimeError(
                f"{self.name}: given normalized_shape={list(sizes)}, expected input with shape "
                f"[{expected}], but got input of size {list(shape.dims)}"
            )

    def apply(self, x: Tensor, env: Env) -> Tensor:
        names = (self.running_mean, self.running_var, self.weight, self.bias)
        wide, (mean, var, weight, bias) = alike(x, env, *names)
        if not self.training:
            assert mean is not None
            assert var is not None
            return self._by_running(wide, mean, var, weight, bias).to(x.dtype)
        # Copies, which torch moves: whoever evaluates a chain decides what becomes of them.
        mean, var = (each if each is None else each.clone() for each in (mean, var))
        y = _affine(self.of_torch(wide, mean, var), weight, bias, self._meeting(x.dim()))
        for name, moved in zip(self.updates, (mean, var), strict=False):
            assert moved is not None
            env[name] = moved.reshape(env[name].shape)
        return y.to(x.dtype)

    def _meeting(self, axes: int) -> tuple[int, ...]:
        """The shape in which weight and bias meet the values."""
        return self.over if isinstance(self.over, tuple) else (-1, *(1,) * (axes - 2))

    def of_torch(
        self, x: Tensor, mean: Tensor | None, var: Tensor | None
    ) -> Callable[[Tensor | None, Tensor | None], Tensor]:
        """torch's own function for it, of weight and bias."""
        if self.over == "batch":
            rest = (True, self.momentum, self.eps)
            return lambda weight, bias: F.batch_norm(x, mean, var, weight, bias, *rest)  # type: ignore[arg-type]
        if self.over == "groups" and self.num_groups is not None:
            groups = integer("num_groups", self.num_groups)
            return lambda weight, bias: F.group_norm(x, groups, weight, bias, self.eps)  # type: ignore[arg-type]
        if self.over == "groups":
            rest = (True, self.momentum, self.eps)
            return lambda weight, bias: F.instance_norm(x, mean, var, weight, bias, *rest)  # type: ignore[arg-type]
        last = isinstance(self.over, tuple)
        sizes = list(self.over) if isinstance(self.over, tuple) else [x.shape[1]]
        values = x if last else x.movedim(1, -1)

        def over_last(weight: Tensor | None, bias: Tensor | None) -> Tensor:
            weight = weight if weight is None else weight.reshape(sizes)
            bias = bias if bias is None else bias.reshape(sizes)
            if self.centred:
                y = F.layer_norm(values, sizes, weight, bias, self.eps)  # type: ignore[arg-type]
            else:
                y = F.rms_norm(values, sizes, weight, self.eps)
            return y if last else y.movedim(-1, 1)

        return over_last

    def _by_running(
        self, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        assert self.eps is not None
        scale = (var + self.eps).rsqrt()
        scale = scale if weight is None else scale * weight
        if x.device.type != "cpu" or plain.finite(mean * scale):
            return F.batch_norm(x, mean, var, weight, bias, training=False, eps=self.eps)
        # torch's CPU kernels compute x * scale + (bias - mean * scale): here Inf - Inf.
        of_channels = (-1, *(1,) * (x.dim() - 2))
        y = (x - mean.reshape(of_channels)) * scale.reshape(of_channels)
        return y if bias is None else y + bias.reshape(of_channels)

    def halves(self, key: str) -> "tuple[BatchStatistics, BatchApply] | None":
        if not self.training or self.over != "batch":
            return None
        assert self.eps is not None, "a batch norm has one"
        return (
            BatchStatistics(key, self.running_mean, self.running_var, self.momentum),
            BatchApply(key, self.weight, self.bias, self.eps),
        )

    def action(self, shape: Shape) -> Normalize | None:
        sees = self.sees(len(shape.spatial))
        if sees is Kind.AXES:
            return None
        assert self.eps is not None, f"{self} is no engine's"
        given = None
        if sees is Kind.POINTWISE:
            given = _name(self.running_mean), _name(self.running_var)
        return Normalize(
            self.eps,
            _optional(self.weight),
            _optional(self.bias),
            1 if given else self.groups(shape),
            self.over == "batch",
            given,
            self.running,
        )

    def sweep(self, walk: Walk) -> None:
        shape = walk.shape
        rank = len(shape.spatial)
        values: dict[str, Value] = {}
        if not self.training:
            values |= {
                "mean": _given(self.running_mean, (1,)),
                "var": _given(self.running_var, (1,)),
            }
        elif self.centred:
            groups = self.groups(shape) if self.num_groups is not None else 1
            mean, var = walk.fold("moments", self.axes(rank), groups)
            values |= {"mean": mean, "var": var}
            if self.running:
                walk.update(self.running, mean, var, self.scope(shape))
        else:
            (values["var"],) = walk.fold("squares", self.axes(rank))
        y = X - symbol("mean") if "mean" in values else X
        assert self.eps is not None, "known where the type is; see typed"
        y = y * rsqrt(symbol("var") + self.eps)
        along = self.axes(rank) if isinstance(self.over, tuple) else (1,)
        if self.weight is not None:
            y, values["weight"] = y * symbol("weight"), _given(self.weight, along)
        if self.bias is not None:
            y, values["bias"] = y + symbol("bias"), _given(self.bias, along)
        walk.map(y, values)

    def __str__(self) -> str:
        found = {**vars(self), "normalized_shape": self.over, "use_input_stats": self.training}
        known = signature(MAKERS[self.made]).parameters.values()
        given = [(each.name, found[each.name], each.default) for each in known]
        if self.made != "batch_norm":
            return called(self.name, given)
        told = (f"{k}={shown(v)}" for k, v, usual in given if k != "training" and v != usual)
        return f"{self.name}({', '.join(('batch' if self.training else 'running', *told))})"


@dataclass(frozen=True)
class BatchStatistics(Stage):
    """First half of a batch norm: mean and variance into ``key``; the values pass unchanged."""

    kind: ClassVar[Kind] = Kind.WHOLE
    name: ClassVar[str] = "batch_statistics"
    mixes: ClassVar[bool] = True
    applies: ClassVar[bool] = False
    key: str
    running_mean: Operand = parameter(Tensor, default=None)
    running_var: Operand = parameter(Tensor, default=None)
    momentum: float = 0.1

    @property
    def running(self) -> Running | None:
        return _running(self.running_mean, self.running_var, self.momentum)

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    def scope(self, shape: Shape) -> int:
        return shape.n * shape.positions

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        return full

    def shape(self, shape: Shape) -> Shape:
        _more_than_one_value("batch_norm", self.scope(shape), shape)
        return shape

    def action(self, shape: Shape) -> Normalize:
        return Normalize(0.0, over_batch=True, running=self.running, applies=self.applies)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        axes = [0, *range(2, x.dim())]
        var, mean = torch.var_mean(x, axes, correction=0)
        env[f"{self.key}.var"], env[f"{self.key}.mean"] = var, mean
        if self.running:
            env.update(self.running.moved(env, mean, var, x.numel() // x.shape[1]))
        return x


@dataclass(frozen=True)
class BatchApply(Stage):
    """Second half of a batch norm: ``y = (x - mean) / sqrt(var + eps) * weight + bias``."""

    kind: ClassVar[Kind] = Kind.WHOLE
    name: ClassVar[str] = "batch_apply"
    mixes: ClassVar[bool] = True
    gathers: ClassVar[bool] = False
    key: str
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def action(self, shape: Shape) -> Normalize:
        weight, bias = _optional(self.weight), _optional(self.bias)
        return Normalize(self.eps, weight, bias, over_batch=True, gathers=self.gathers)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        y = x - channel(f"{self.key}.mean", env, x)
        y = y * (channel(f"{self.key}.var", env, x) + self.eps).rsqrt()
        if self.weight is not None:
            y = y * channel(self.weight, env, x)
        return y if self.bias is None else y + channel(self.bias, env, x)


def _given(operand: Operand, axes: tuple[int, ...]) -> Given:
    return Given(_name(operand), axes)


def _name(operand: Operand) -> str:
    assert isinstance(operand, str), "a stage that runs names its tensors"
    return operand


def _optional(operand: Operand) -> str | None:
    return None if operand is None else _name(operand)


def _running(mean: Operand, var: Operand, momentum: float) -> Running | None:
    # Names only: tensors that a stage still holds are lifted out of it before anything runs.
    named = isinstance(mean, str) and isinstance(var, str)
    return Running(mean, var, momentum) if named else None  # type: ignore[arg-type]


def _affine(
    norm: Callable[[Tensor | None, Tensor | None], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    meeting: tuple[int, ...],
) -> Tensor:
    """A norm of torch's with its weight and bias.

    torch's CPU kernels compute ``x * (w/s) + (b - mean * w/s)``, where an infinite weight gives
    Inf - Inf; then weight and bias are applied as the definition says, after the norm.
    """
    if weight is None or weight.device.type != "cpu" or plain.finite(weight):
        return norm(weight, bias)
    y = norm(None, None) * weight.reshape(meeting)
    return y if bias is None else y + bias.reshape(meeting)


def _more_than_one_value(name: str, values: int, shape: Shape) -> None:
    if values == 1:
        raise ValueError(
            f"{name}: expected more than 1 value per channel, got an input of {list(shape.dims)}"
        )


def batch_norm(
    running_mean: Operand = None,
    running_var: Operand = None,
    weight: Operand = None,
    bias: Operand = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Norm:
    r"""Batch norm, with the arguments of ``torch.nn.functional.batch_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    for each channel. Which statistics these are is always said:

    - ``training=False``: the running ones, which must be given. Nothing is gathered, so this is an
      element's affair and fuses like an addition.
    - ``training=True``: those of this batch, over samples and positions, the variance biased.
      Running statistics that are given **are written to**, once for each call that does not raise:
      ``running = (1 - momentum) * running + momentum * found``, with the unbiased variance.

    What a ``torch.nn.BatchNorm2d`` does that keeps running statistics with a ``momentum``, in the
    mode that it is in::

        bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.training, bn.momentum, bn.eps

    Args:
        running_mean: one value per channel, or the name that a call gives it under. Memory that is
            written to must be its own: no other tensor of the call may share it.
        running_var: the same of the variance; both, or neither.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        training: whether the statistics are those of this batch. Default: ``False``
        momentum: how far running statistics move. Default: 0.1
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits all four tensors may be float32.

    Shape:
        - x: :math:`(N, C, *)`, and with ``training=True`` more than one value for each channel
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> mean, var = torch.zeros(8), torch.ones(8)
        >>> y = conv_transpose(x, w, then=[batch_norm(mean, var)])
        >>> y = conv_transpose(x, w, then=[batch_norm(mean, var, training=True)])  # moves both
    """
    _expect_flag("batch_norm", "training", training)
    momentum, eps = _numbers("batch_norm", momentum=momentum, eps=eps)
    if eps < 0 or (training and eps == 0):
        legal = "positive in training" if training else "non-negative"
        raise ValueError(f"batch_norm: eps must be {legal}, but got {eps}")
    _expect_running("batch_norm", "training", training, running_mean, running_var)
    given = (running_mean, running_var, weight, bias, momentum if training else 0.1, eps)
    return Norm("batch_norm", "batch", None, *given, training=training)


def group_norm(
    num_groups: int | str, weight: Operand = None, bias: Operand = None, eps: float = 1e-5
) -> Norm:
    r"""Group norm, with the arguments of ``torch.nn.functional.group_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance of each sample's groups of neighbouring channels.

    Args:
        num_groups: how many groups the channels fall into; it divides them.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits weight and bias may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[group_norm(4, torch.ones(8), torch.zeros(8))])
        >>> bool(y[:, :2].mean((1, 2, 3)).abs().max() < 1e-5)
        True
    """
    _expect_eps("group_norm", eps)
    return Norm("group_norm", "groups", num_groups, weight=weight, bias=bias, eps=eps)


def instance_norm(
    running_mean: Operand = None,
    running_var: Operand = None,
    weight: Operand = None,
    bias: Operand = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Norm:
    r"""Instance norm, with the arguments of ``torch.nn.functional.instance_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance of each channel of each sample.

    Args:
        running_mean: one value per channel. With ``use_input_stats`` it is written to:
            ``running = (1 - momentum) * running + momentum * found``, the mean over samples.
        running_var: the same of the variance, of which the unbiased one is found.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        use_input_stats: whether the statistics are those of the values; otherwise they are the
            running ones, which must be given. Default: ``True``
        momentum: how far running statistics move. Default: 0.1
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits all four tensors may be float32.

    Shape:
        - x: :math:`(N, C, *)`, with ``use_input_stats`` more than one position
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[instance_norm()])
        >>> bool(y.mean((2, 3)).abs().max() < 1e-5)
        True
    """
    _expect_flag("instance_norm", "use_input_stats", use_input_stats)
    momentum, eps = _numbers("instance_norm", momentum=momentum, eps=eps)
    _expect_running("instance_norm", "use_input_stats", use_input_stats, running_mean, running_var)
    given = (running_mean, running_var, weight, bias, momentum if use_input_stats else 0.1, eps)
    return Norm("instance_norm", "groups", None, *given, training=use_input_stats)


def layer_norm(
    normalized_shape: int | tuple[int, ...] | Literal["channels"],
    weight: Operand = None,
    bias: Operand = None,
    eps: float = 1e-5,
) -> Norm:
    r"""Layer norm, with the arguments of ``torch.nn.functional.layer_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance over the last axes, or over the channels of each position.

    Args:
        normalized_shape: the sizes of the last axes, or ``"channels"``.
        weight: factors of that shape, one per channel for ``"channels"``. Default: 1
        bias: terms likewise. Default: 0
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits weight and bias may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[layer_norm("channels", torch.ones(8))])
        >>> bool(y.mean(1).abs().max() < 1e-5)
        True
        >>> y = conv_transpose(x, w, then=[layer_norm((7, 7))])
    """
    _expect_eps("layer_norm", eps)
    sizes = _sizes("layer_norm", normalized_shape)
    return Norm("layer_norm", sizes, weight=weight, bias=bias, eps=eps)


def rms_norm(
    normalized_shape: int | tuple[int, ...] | Literal["channels"],
    weight: Operand = None,
    eps: float | None = None,
) -> Norm:
    r"""RMS norm, with the arguments of ``torch.nn.functional.rms_norm`` after its input.

    .. math:: y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \mathrm{eps}}} \cdot \mathrm{weight}

    with the mean over the last axes, or over the channels of each position.

    Args:
        normalized_shape: the sizes of the last axes, or ``"channels"``.
        weight: factors of that shape, one per channel for ``"channels"``. Default: 1
        eps: what is added to the mean. Default: the distance from 1 to the next number in float32,
            and in float64 for values of that type

    Beside values of 16 bits weight may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[rms_norm("channels", torch.ones(8))])
        >>> bool((y.square().mean(1) - 1).abs().max() < 1e-3)
        True
    """
    sizes = _sizes("rms_norm", normalized_shape)
    return Norm("rms_norm", sizes, weight=weight, eps=eps, centred=False)


MAKERS: dict[str, Callable[..., Norm]] = {
    each.__name__: each for each in (batch_norm, group_norm, instance_norm, layer_norm, rms_norm)
}


def _expect_flag(stage: str, name: str, given: object) -> None:
    if not isinstance(given, bool):
        raise TypeError(f"{stage}: {name} must be bool, not {type(given).__name__}")


def _expect_eps(stage: str, given: object) -> None:
    if given is None:  # which only rms_norm takes
        raise TypeError(f"{stage}: eps must be float, not NoneType")


def _numbers(stage: str, **given: Any) -> tuple[float, ...]:
    for name, value in given.items():
        if not isinstance(value, Real):
            raise TypeError(f"{stage}: {name} must be float, not {type(value).__name__}")
    return tuple(map(float, given.values()))


def _expect_running(stage: str, flag: str, own: bool, mean: Operand, var: Operand) -> None:
    given = (("running_mean", mean), ("running_var", var))
    missing = [name for name, each in given if each is None]
    if not own and missing:
        raise RuntimeError(
            f"{stage}: without {flag} it normalises with the running statistics, and "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            f"pass running_mean and running_var, or {flag}=True for the statistics of the "
            f"{'batch' if stage == 'batch_norm' else 'values'}"
        )
    if len(missing) == 1:
        raise ValueError(
            f"{stage}: running_mean and running_var must be given both or neither, and "
            f"{missing[0]} is missing"
        )


def _sizes(stage: str, given: object) -> str | tuple[int, ...]:
    if isinstance(given, str):
        if given != "channels":
            raise ValueError(
                f"{stage}: normalized_shape must be the sizes of the last axes or 'channels', "
                f"not {given!r}"
            )
        return given
    sizes = given if isinstance(given, list | tuple) else (given,)
    if not sizes:
        raise RuntimeError(f"{stage}: expected normalized_shape to hold at least one size")
    return tuple(integer(f"{stage} normalized_shape", each) for each in sizes)
