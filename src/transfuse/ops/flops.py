"""What a chain counts in ``torch.utils.flop_counter``: its convolution, as torch counts one."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Any

import torch

from transfuse.line import outline
from transfuse.ops.arguments import FEWEST
from transfuse.problem import Shape

MODULE = "torch.utils.flop_counter"


def register() -> None:
    """Make the formulas known where somebody counts: when torch's counter is loaded, or is so now.

    To load it takes as long as this whole package, and few count.
    """
    if MODULE in sys.modules:
        _formulas()
    else:
        sys.meta_path.insert(0, _WhenLoaded())


class _WhenLoaded(MetaPathFinder):
    """Tells of the formulas as soon as torch's counter has been loaded; looks for nothing else."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def then_tell(module: ModuleType) -> None:
                load(module)
                _formulas()

            spec.loader.exec_module = then_tell  # type: ignore[method-assign]
        return spec


def _formulas() -> None:
    from torch.utils.flop_counter import register_flop_formula

    ops = torch.ops.transfuse
    register_flop_formula([ops.chain, ops.chain_updating, ops.chain_keeping])(_forward)
    register_flop_formula(ops.chain_backward)(_backward)


def _forward(x: Sequence[int], weight: Sequence[int], operands: Any, *rest: Any, **_: Any) -> int:
    _, line, *_options = rest
    return _convolution(x, weight, line)


def _backward(
    grad: Any, x: Sequence[int], weight: Sequence[int], operands: Any, *rest: Any, **_: Any
) -> int:
    """A convolution for each of the two tensors whose gradient is wanted; and the forward's,
    unless something was kept of it."""
    _, line, *_options, wanted = rest[:FEWEST]
    again = not any(rest[FEWEST:])
    return (again + int(sum(wanted[:2]))) * _convolution(x, weight, line)


def _convolution(x: Sequence[int], weight: Sequence[int], line: str) -> int:
    """Each input meets every tap of its channels: ``2 * N * Ci * Co/groups * positions * taps``."""
    shape = Shape(x[0], x[1], tuple(x[2:]))
    for stage in outline(line)[0].prologue:
        shape = stage.shape(shape)
    count: int = 2 * shape.n * shape.positions * prod(weight)
    return count
