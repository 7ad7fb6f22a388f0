"""Norms: values less their mean, over their deviation. Which statistics these are is data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

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
    parameter,
    shown,
)
from transfuse.stages.names import named, optional
from transfuse.stages.norm_checks import more_than_one_value
from transfuse.stages.running import Running, kept_as
from transfuse.stages.torch_norms import affine, by_running
from transfuse.stages.walk import Given, Value, Walk

if TYPE_CHECKING:
    from transfuse.stages.batch_halves import BatchApply, BatchStatistics

_OVER = ("batch", "groups", "channels")
_MADE = ("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm")
MAKERS: "dict[str, Callable[..., Norm]]" = {}
"""The functions that make norms, by name: a norm prints as the call of its own."""
M = TypeVar("M", bound="Callable[..., Norm]")


def maker(function: M) -> M:
    """Enter a function that makes norms."""
    MAKERS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Norm(Stage):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias``; made by the functions of ``norms.py``.

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
        return kept_as(*names, self.momentum) if self.training else None

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    @property
    def across_samples(self) -> bool:
        return self.over == "batch"

    @property
    def checked_in_c(self) -> bool:
        return not self.training or self.made in ("batch_norm", "group_norm")

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
            more_than_one_value(self.name, self.scope(shape), shape)
        elif self.num_groups is not None:
            more_than_one_value(self.name, shape.n * self.scope(shape), shape)
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
            assert self.eps is not None
            return by_running(wide, mean, var, weight, bias, self.eps).to(x.dtype)
        # Copies, which torch moves: whoever evaluates a chain decides what becomes of them.
        mean, var = (each if each is None else each.clone() for each in (mean, var))
        y = affine(self.of_torch(wide, mean, var), weight, bias, self._meeting(x.dim()))
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

    def halves(self, key: str) -> "tuple[BatchStatistics, BatchApply] | None":
        if not self.training or self.over != "batch":
            return None
        from transfuse.stages.batch_halves import BatchApply, BatchStatistics

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
            given = named(self.running_mean), named(self.running_var)
        return Normalize(
            self.eps,
            optional(self.weight),
            optional(self.bias),
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
                "mean": Given(named(self.running_mean), (1,)),
                "var": Given(named(self.running_var), (1,)),
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
            y, values["weight"] = y * symbol("weight"), Given(named(self.weight), along)
        if self.bias is not None:
            y, values["bias"] = y + symbol("bias"), Given(named(self.bias), along)
        walk.map(y, values)

    def __str__(self) -> str:
        found = {**vars(self), "normalized_shape": self.over, "use_input_stats": self.training}
        known = signature(MAKERS[self.made]).parameters.values()
        given = [(each.name, found[each.name], each.default) for each in known]
        if self.made != "batch_norm":
            return called(self.name, given)
        told = (f"{k}={shown(v)}" for k, v, usual in given if k != "training" and v != usual)
        return f"{self.name}({', '.join(('batch' if self.training else 'running', *told))})"
