"""Gradients of a chain: what a step of training asks for after the forward call."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from transfuse import dispatch, log, plain, settings
from transfuse.backends.backward import Backward, told_by_result
from transfuse.backends.base import Backend, Verdict
from transfuse.backends.eager import evaluated, pulled_back
from transfuse.backends.keeping import Keeping
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.line import INPUT, WEIGHT
from transfuse.plan import Pass, Plan, staged
from transfuse.problem import Problem


def gradients(
    chain: Chain,
    problem: Problem,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    wanted: Collection[str],
    kept: Sequence[Tensor] = (),
    result: Tensor | None = None,
) -> dict[str, Tensor]:
    """The gradients of ``(grad * y).sum()``, y the chain's result, by those of its tensors wanted.

    ``kept``: what the forward call kept, as ``keeping`` says; ``result``: y, where ``told`` says
    that it serves. Nothing is written to the operands, running statistics among them.
    """
    if not wanted:
        return {}
    backward = None
    if problem.batch and not plain.why_not((grad, x, weight, *operands.values(), *kept)):
        backend, names = settings.backend(), frozenset(wanted)
        keeps = keeping(chain, problem, backend) if kept else None
        numbers = keeps.kept if keeps else ()
        if result is not None:
            backward = _told(chain, problem, names, backend, numbers)
        backward = backward or _backward(chain, problem, names, backend, numbers)
    if backward is None:
        return _by_autograd(chain, problem, grad, x, weight, operands, wanted)
    with torch.no_grad():
        found = backward(grad, x, weight, operands, kept, result)
    return {name: found[name] for name in wanted}


def told(chain: Chain, problem: Problem, asked: str | None) -> bool:
    """Whether the result tells gradients by all tensors what they read of the values before it.

    It is there in any case, and what a layer that follows reads; so nothing is kept for it.
    """
    if chain.updates or not problem.batch:
        return False
    return _told(chain, problem, _learnt(chain, problem), asked) is not None


@lru_cache(maxsize=4096)
def keeping(chain: Chain, problem: Problem, asked: str | None) -> Keeping | None:
    """The forward call that keeps what gradients by all tensors read, where that is cheaper."""
    if any(stage.updates for stage in chain.prologue) or not problem.batch:
        return None
    wanted = _learnt(chain, problem)
    chosen, verdict = _chosen(chain, problem, asked)
    if verdict.yields or _backward(chain, problem, wanted, asked) is None:
        return None
    found = Keeping(chosen, chain, problem, wanted)
    return found if found.kept and found.cheaper else None


def _learnt(chain: Chain, problem: Problem) -> frozenset[str]:
    """All tensors but running statistics that move."""
    moved = set(chain.updates)
    named = [name for name, _ in chain.dims(problem) if name not in moved]
    return frozenset((INPUT, WEIGHT, *named))


def plan_backward(chain: Chain, problem: Problem) -> Plan:
    """The passes that the gradients of a chain by all its tensors take, with flops and bytes.

    Where torch's autograd finds them it keeps the values after each stage, and takes two passes
    back over it: one by its values, one by its tensors.
    """
    asked = settings.backend()
    names = _learnt(chain, problem)
    by_result = _told(chain, problem, names, asked) if told(chain, problem, asked) else None
    keeps = None if by_result else keeping(chain, problem, asked)
    if keeps is not None:
        return keeps.plan()
    backward = by_result or _backward(chain, problem, names, asked)
    if backward is not None:
        return backward.plan()
    forward = staged(chain, problem, ELEMENTS[problem.dtype].itemsize)
    passes = [
        Pass(f"back through {each.does} · in torch", 2 * each.flops, each.bytes, each.reads)
        for each in reversed(forward.passes)
    ]
    work, kept = 2 * forward.work, sum(each.writes for each in forward.passes[:-1])
    note = "torch's autograd, from the values that its forward call kept"
    return replace(forward, passes=tuple(passes), work=work, scratch=kept, note=note)


def _by_autograd(
    chain: Chain,
    problem: Problem,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    wanted: Collection[str],
) -> dict[str, Tensor]:
    """The same in plain torch, stage by stage."""
    tensors = {INPUT: x, WEIGHT: weight, **operands}
    leaves = {name: tensor.detach() for name, tensor in tensors.items()}
    for name in wanted:
        leaves[name].requires_grad_()
    with torch.enable_grad():
        given = {name: leaves[name] for name in operands}
        y = evaluated(chain, problem, leaves[INPUT], leaves[WEIGHT], given)
    found = pulled_back(y, [leaves[name] for name in wanted], grad)
    return dict(zip(wanted, found, strict=True))


@lru_cache(maxsize=4096)
def _told(
    chain: Chain,
    problem: Problem,
    wanted: frozenset[str],
    asked: str | None,
    kept: tuple[int, ...] = (),
) -> Backward | None:
    """The gradients by the result, where it tells what they read beside what is kept."""
    if _backward(chain, problem, wanted, asked) is None:
        return None
    return told_by_result(_chosen(chain, problem, asked)[0], chain, problem, wanted, kept)


@lru_cache(maxsize=4096)
def _backward(
    chain: Chain,
    problem: Problem,
    wanted: frozenset[str],
    asked: str | None,
    kept: tuple[int, ...] = (),
) -> Backward | None:
    """How a fused backend finds the gradients of a chain; None where torch alone does.

    A backend that leaves the call to a faster one does so for its convolution. The gradients of
    that are torch's in any case, so here it is not passed over.
    """
    chosen, _ = _chosen(chain, problem, asked)
    try:
        if chosen.kernels is None:
            return None
        return Backward(chosen, chain, problem, wanted, kept)
    except NotImplementedError:
        line = "%s has no kernel for a gradient of %s (%s): torch runs it stage by stage"
        log.once(logging.WARNING, ("gradients", chain), line, chosen.name, chain, problem)
        return None


def _chosen(chain: Chain, problem: Problem, asked: str | None) -> tuple[Backend, Verdict]:
    """The first backend that could run a chain, and what it says of it."""
    verdicts = dispatch.decide(chain, problem, asked).verdicts
    return next((backend, verdict) for backend, verdict in verdicts if verdict.ok)
