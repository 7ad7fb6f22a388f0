"""What a graph calls in place of the operations that were fused."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.compiler import is_dynamo_compiling

from transfuse import log
from transfuse.chain import Chain
from transfuse.errors import UnsupportedError
from transfuse.front import call
from transfuse.fusing.autocasting import result_type, the_one
from transfuse.tensors import any_autocast, autocasts

GEOMETRY = ("stride", "padding", "output_padding", "dilation", "groups")
"""What a convolution is given beside tensors, in the order of ``front.call``."""


class FusedCall:
    """A chain to be called with the values of a graph: input, weight, then those it names.

    Args:
        chain: what is computed, with names in place of tensors and of numbers that a call gives
        names: those names, in the order in which a call gives what they stand for
        spread: which of them broadcast as torch's operands do; others are one value per channel,
            or of the values' own shape
        geometry: the convolution's options by name: values, or those of ``names`` that stand for
            them
        contiguous: whether the result is to be so
        original: the operations that the chain stands for, of the same arguments
    """

    def __init__(
        self,
        chain: Chain,
        names: Sequence[str],
        spread: frozenset[str],
        geometry: Mapping[str, Any],
        contiguous: bool,
        original: fx.GraphModule,
    ) -> None:
        self.chain = chain
        self.names = tuple(names)
        self.spread = tuple(name in spread for name in self.names)
        self.options = tuple(geometry[each] for each in GEOMETRY)
        self.given = tuple(at for at, each in enumerate(self.options) if type(each) is str)
        self.contiguous = contiguous
        self.original = the_one(original)
        self.code = original.code
        self.axes = chain.conv.rank + 2
        self.writes = tuple(self.names.index(name) + 2 for name in chain.updates)
        # As torch.fx names what it calls, in the code that it writes.
        self.__name__ = self.__qualname__ = f"fused_conv_transpose{chain.conv.rank}d"
        self.__module__ = __name__

    def __call__(self, x: Tensor, weight: Tensor, *values: Any) -> Tensor:
        if x.dim() != self.axes:
            return self._unfused(f"the input has {x.dim()} axes", x, weight, *values)
        if self.given and is_dynamo_compiling() and autocasts(x):
            return self._unfused("a call gives its options under autocast", x, weight, *values)
        operands: dict[str, Tensor] = {}
        numbers: dict[str, Any] | None = None
        for name, spread, value in zip(self.names, self.spread, values):  # noqa: B905 takes its time
            if not isinstance(value, Tensor):
                numbers = {} if numbers is None else numbers
                numbers[name] = value
            elif spread and (value.dim() < 2 or not value.is_floating_point()):
                operands[name] = met(value, x.dtype, self.axes)
            else:
                operands[name] = value
        options = self.options
        if self.given:
            assert numbers is not None
            options = tuple(
                numbers.pop(each) if at in self.given else each for at, each in enumerate(options)
            )
        stride, padding, output_padding, dilation, groups = options
        wrong = ""
        try:
            y = call(
                self.chain, x, weight, operands, numbers, stride, padding, output_padding, dilation,
                groups, site=self,
            )  # fmt: skip
        except (UnsupportedError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
            # A trace has no objects to print.
            wrong = "its tensors do not fit it" if is_dynamo_compiling() else str(error)
        if wrong:  # not above: what torch says of it would come as an error that came of another
            return self._unfused(wrong, x, weight, *values)
        if is_dynamo_compiling():
            if autocasts(x):
                tensors = [each if isinstance(each, Tensor) else None for each in values]
                y = torch.ops.transfuse.typed(y, self.code, [x, weight, *tensors])
        elif any_autocast() and autocasts(x):
            y = y.to(result_type(self.original, (x, weight, *values)))
        return y.contiguous() if self.contiguous else y

    def _unfused(self, why: str, *values: Any) -> Tensor:
        """The original operations. What is wrong with a call they say in torch's words."""
        y: Tensor = self.original.forward(*values)  # called itself, it would print its code
        line = "%s runs unfused, as torch operations: %s"
        if is_dynamo_compiling():
            log.once(logging.WARNING, line, line, "a fused call in a compiled graph", why)
        else:
            log.once(logging.WARNING, (id(self), line), line, self.chain, why)
        return y

    def __repr__(self) -> str:
        return f"<fused {self.chain}>"


def met(value: Tensor, dtype: torch.dtype, axes: int) -> Tensor:
    """A tensor that broadcasts as torch's do, as a chain takes it.

    To a chain a tensor of one axis is one value per channel; torch has it along the last axis. One
    that is no floating point takes the type of the values, as it does in torch.
    """
    if value.dim() == 0:
        return value.to(dtype).reshape(1)
    if not value.is_floating_point() and not value.is_complex():
        value = value.to(dtype)
    return value.reshape(*(1,) * (axes - 1), -1) if value.dim() == 1 else value
