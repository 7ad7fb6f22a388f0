"""Calls that passed every check: what they were, and what tells that another is the same."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from struct import Struct
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.compiler import is_dynamo_compiling

from transfuse import dispatch, plain, settings
from transfuse.backends import Backend
from transfuse.backends.base import Executable, settled
from transfuse.chain import Chain
from transfuse.elements import float32_on_cuda
from transfuse.problem import Problem
from transfuse.stages import Number

CallOptions = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]
"""Chain, stride, padding, output_padding, dilation, groups, output_size, backend, precision."""
Guard = Callable[..., bool]
"""Compares type, dispatch keys, dtype, device, shape, strides and requires_grad of each tensor with
those of earlier ones. Modes, transforms, traces and autocast change the dispatch keys. False where
one tensor is given twice."""
MOST = 4096
"""Entries kept; one more, and all are forgotten."""
Kept = TypeVar("Kept")


@dataclass
class Checked:
    """A call that passed every check, and what runs it.

    ``asked``: the backend it asked for; ``spans``: the bytes from each tensor's first to its end;
    ``updates``: operands it writes to; ``settled``: a guard, and what runs on tensors that pass it.
    """

    chain: Chain
    problem: Problem
    backend: Backend
    run: Executable
    asked: str | None
    spans: tuple[int, ...]
    updates: tuple[str, ...]
    settled: tuple[Guard, Executable] | None = None

    def settle(
        self, tensors: Sequence[Tensor], operands: Mapping[str, Tensor], out: Tensor | None
    ) -> tuple[Guard, Executable] | None:
        """The guard that these tensors pass, and what runs on all that do.

        None where one tensor is given twice, and for tensors that are more than memory after all,
        such as named ones: what makes others like them need not understand that.
        """
        if self.settled is None or not self.settled[0](*tensors):
            guard = guarding(tensors)
            if guard is None:
                return None
            x, weight, *_ = tensors
            self.settled = guard, settled(self.run, x, weight, operands, out)
        return self.settled

    def repeatable(
        self,
        given: CallOptions,
        scalars: Mapping[str, Number] | None,
        tensors: Sequence[Tensor],
        operands: Mapping[str, Tensor],
        out: Tensor | None,
    ) -> "Recent | None":
        """The call as one that its weight or its site tells again.

        None where an argument may change, and where nothing is settled.
        """
        numbers = tuple(scalars.values()) if scalars else ()
        settled = self.settle(tensors, operands, out)
        if settled is None or not all(map(_lasting, (*given[1:], *numbers))):
            return None
        x, (guard, run) = tensors[0], settled
        facts = (self.chain, self.problem, self.backend, run, self.asked, self.spans, self.updates)
        names = tuple(scalars or ())
        return Recent(*facts, None, given, numbers, names, guard, out is not None, *_set_to(x))


@dataclass
class Recent(Checked):
    """The last call with a weight or of a site, kept by its id, and what must be as it was then.

    ``given`` and ``scalars``: that call's own arguments, and ``names`` those of its scalars; of a
    chain's names the rest are tensors. Nothing can change the arguments, so the very same
    objects are the same values. ``into``: whether it had an output. ``run`` is for tensors that
    pass ``guard``. The rest is what the choice of a backend depends on beside these.
    """

    given: CallOptions = (None,) * 9
    scalars: tuple[object, ...] = ()
    names: tuple[str, ...] = ()
    guard: Guard = bool
    into: bool = False
    setting: str | None = None
    backends: tuple[Backend, ...] = ()
    gradients: bool = False
    float32: str = ""

    def alike(
        self, scalars: Mapping[str, Number] | None, tensors: Sequence[Tensor], into: bool
    ) -> bool:
        """Whether all that checks look at beside ``given`` is as it was; asked for each call."""
        if (
            into is not self.into
            or self.backends is not dispatch.BACKENDS
            or self.setting != settings.backend()
            or self.gradients is not torch.is_grad_enabled()
            or ((scalars or self.names) and not self._given_again(scalars or {}))
            or dispatch.explaining()
            or not plain.undisturbed()
        ):
            return False
        try:
            for tensor in tensors:
                if tensor.is_nested:  # has no strides, and the guard ends the process
                    return False
        except AttributeError:  # no tensor
            return False
        return self.guard(*tensors) and (not self.float32 or self.float32 == float32_on_cuda())

    def _given_again(self, scalars: Mapping[str, Number]) -> bool:
        """Whether these are the very scalars."""
        return (*scalars,) == self.names and all(map(is_, scalars.values(), self.scalars))


def guarding(tensors: Sequence[Tensor]) -> Guard | None:
    """What tells tensors like these, as far as none is nested: those have no strides, and it would
    end the process.

    None where one tensor is given twice, and for tensors that are more than memory.
    """
    if len({*map(id, tensors)}) < len(tensors) or any(map(plain.unlike_plain, tensors)):
        return None
    # None: sizes and strides as they are.
    made = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    check: Guard = made.check
    return check


def _set_to(x: Tensor) -> tuple[str | None, tuple[Backend, ...], bool, str]:
    """What the choice of a backend depends on beside arguments and tensors."""
    float32 = float32_on_cuda() if x.is_cuda and x.dtype is torch.float32 else ""
    return settings.backend(), dispatch.BACKENDS, torch.is_grad_enabled(), float32


def _lasting(value: object) -> bool:
    """Whether nothing can change what it holds."""
    if type(value) is tuple:
        return all(map(_lasting, value))
    return value is None or type(value) in (int, float, str)


def keep(kept: dict[Hashable, Kept], key: Hashable, found: Kept) -> None:
    """Remember one more."""
    if len(kept) >= MOST and key not in kept:
        kept.clear()
    kept[key] = found


def facts(
    what: Hashable, tensors: Sequence[Tensor], names: Iterable[str], backend: str | None
) -> Hashable:
    """Everything the checks look at, and the choice of a backend.

    None for what has no key, or is to be explained.
    """
    if not what or dispatch.explaining():
        return None
    found = [what, backend or settings.backend(), dispatch.BACKENDS, torch.is_grad_enabled()]
    found += names
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED:
            return None
        found += (
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
        )  # fmt: skip
    x = tensors[0]
    if x.is_cuda and x.dtype is torch.float32:
        found.append(float32_on_cuda())
    return tuple(found)


_STRIDED = torch.strided


def exactly(*numbers: object) -> tuple[Hashable, ...]:
    """A key for numbers, words, lists of integers and lists of such lists; empty for others.

    It is the same for the same values alone.

    By themselves 1 and 1.0 and True would be one key, and so would 0.0 and -0.0: a float goes by
    its bits, and what is neither that nor an integer has no key. Nor has what is being traced.
    """
    if is_dynamo_compiling():
        return ()
    if {*map(type, numbers)} == _INTEGER:
        return numbers
    key: list[Hashable] = []
    for each in numbers:
        if type(each) is int:
            key.append(each)
        elif type(each) is float:
            key.append(_BITS(each))
        elif type(each) is str:
            key.append(each)
        elif type(each) in _LISTS:
            part: tuple[object, ...] = tuple(each)  # type: ignore[arg-type]
            kinds = {*map(type, part)}
            if not kinds <= _INTEGER:
                part = exactly(*part) if kinds <= _LISTS else ()
                if not part:
                    return ()
            key.append(part)
        else:
            return ()
    return tuple(key)


_INTEGER, _LISTS, _BITS = {int}, {list, tuple, torch.Size}, Struct("d").pack
