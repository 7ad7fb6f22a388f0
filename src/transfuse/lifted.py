"""Chains with names in place of tensors, made once for all stages that differ in tensors alone.

A call gives its stages anew each time, with other tensors or the same. To build a chain of them, to
name its tensors and to hash it takes longer than a small problem does to compute.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from weakref import ReferenceType, ref

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from transfuse.chain import Chain
from transfuse.stages import ConvTranspose, Env, Stage

MOST = 4096
"""Stages and chains kept; one more, and all are forgotten."""

_outlines: dict[int, tuple["ReferenceType[Stage]", object, bool]] = {}
"""By the id of a stage: the stage, if it still is that one, its outline, and if it has tensors."""
_chains: dict[tuple[object, ...], tuple[Chain, tuple[str, ...]]] = {}
"""By rank and outlines: the chain, and the names of its tensors in their order."""


def outlines(
    rank: int, bias: Tensor | None, before: Sequence[Stage], then: Sequence[Stage]
) -> tuple[tuple[object, ...], list[Tensor]]:
    """What stages around a convolution are, whatever their tensors; and these, in their order.

    Nothing tells what they are where ``torch.compile`` traces the call.
    """
    tensors: list[Tensor] = []
    if is_dynamo_compiling():
        stages = (stage for stage in (*before, *then) if isinstance(stage, Stage))
        return (), [tensor for stage in stages for tensor in stage.held]
    found = [rank, bias is not None, *[_outline(stage, tensors) for stage in before], ConvTranspose]
    if bias is not None:
        tensors.append(bias)
    return (*found, *[_outline(stage, tensors) for stage in then]), tensors


def lifted(
    outlines: tuple[object, ...],
    tensors: Sequence[Tensor],
    rank: int,
    bias: Tensor | None,
    before: Sequence[Stage],
    then: Sequence[Stage],
) -> tuple[Chain, Env]:
    """The chain of these stages as ``Chain.lift`` gives it, and its tensors by name.

    Without ``outlines`` nothing is kept.
    """
    if not outlines:  # nor is anything looked up: a trace would be bound to what is kept by now
        return Chain(*before, ConvTranspose(rank, bias), *then).lift()
    found = _chains.get(outlines)
    if found is None:
        chain, operands = Chain(*before, ConvTranspose(rank, bias), *then).lift()
        if len(_chains) >= MOST:
            _chains.clear()
        found = _chains[outlines] = chain, tuple(operands)
    return found[0], dict(zip(found[1], tensors))  # noqa: B905 `strict` takes its time


def _outline(stage: Stage, tensors: list[Tensor]) -> object:
    """One object for all stages that differ in tensors alone; theirs are added to ``tensors``."""
    known = _outlines.get(id(stage))
    if known is not None and known[0]() is stage:
        if known[2]:
            tensors += stage.held
        return known[1]
    if not isinstance(stage, Stage):
        return object()  # of no chain there is: the one that is made of it says what is wrong
    held, outline = stage.held, _same(stage.outline)
    if len(_outlines) >= MOST:
        _outlines.clear()
    _outlines[id(stage)] = ref(stage), outline, bool(held)
    tensors += held
    return outline


@lru_cache(maxsize=MOST)
def _same(outline: Hashable) -> object:
    return object()
