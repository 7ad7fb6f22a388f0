"""Which backend runs a chain: the first that says yes, or the one asked for, or an error."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident

from torch.compiler import is_dynamo_compiling

from transfuse import log, settings
from transfuse.backends import BACKENDS as BACKENDS
from transfuse.backends import Backend, Verdict
from transfuse.chain import Chain
from transfuse.errors import UnsupportedError
from transfuse.problem import Problem


@dataclass(frozen=True)
class Chosen:
    """The backend that runs a call, what each one answered, and those passed over on the way.

    Where a backend is asked for by name, the others are not asked, and none is passed over.
    """

    backend: Backend
    verdicts: tuple[tuple[Backend, Verdict], ...]
    passed: tuple[tuple[Backend, Verdict], ...]


def choose(
    chain: Chain, problem: Problem, name: str | None = None, torch_only: str = ""
) -> Backend:
    """The backend for this call; asked for by name, it serves or raises.

    ``torch_only``: why the call must run as torch operations, if it must. Backends passed over are
    logged.
    """
    if explaining():
        raise Reached(chain, problem, name, torch_only)
    choice = decide(chain, problem, name, torch_only)
    _tell(chain, problem, choice)
    return choice.backend


def decide(chain: Chain, problem: Problem, name: str | None = None, torch_only: str = "") -> Chosen:
    """The backend for this call as ``choose`` gives it, and what every backend answered."""
    wanted = name or settings.read().backend
    if wanted:
        _known(wanted)
    verdicts = tuple(
        (
            each,
            _verdict(each, chain, problem, torch_only)
            if wanted in (None, each.name)
            else Verdict(f"not asked, since {wanted} is asked for by name"),
        )
        for each in BACKENDS
    )
    for at, (backend, verdict) in enumerate(verdicts):
        if verdict.ok and (wanted or not verdict.yields):
            return Chosen(backend, verdicts, passed=() if wanted else verdicts[:at])
    others = [e.name for e in BACKENDS if _verdict(e, chain, problem, torch_only).ok]
    refusals = [(e.name, str(verdict)) for e, verdict in verdicts if wanted in (None, e.name)]
    raise UnsupportedError(_refused(chain, problem, refusals, others))


def fuses(name: str | None) -> bool:
    """Whether a backend may serve that fuses: none is asked for by name that does not."""
    wanted = name or settings.read().backend
    return wanted is None or not _known(wanted).differentiable


def _known(name: str) -> Backend:
    for each in BACKENDS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in BACKENDS)
    raise ValueError(f"unknown backend {name!r}; known: {known}")


class Reached(Exception):
    """A call that is to be explained has come to the choice of its backend, with these arguments.

    All its checks have passed by then, and nothing is computed yet.
    """


_explained: dict[int, None] = {}
"""Threads whose calls are to be explained."""


def explaining() -> bool:
    """Whether calls of this thread are to be explained, not run."""
    return bool(_explained) and get_ident() in _explained


def reached(call: Callable[[], object]) -> Reached:
    """Where a call comes to the choice of its backend; what it raises before, it raises here."""
    _explained[get_ident()] = None
    try:
        call()
    except Reached as found:
        return found
    finally:
        del _explained[get_ident()]
    raise RuntimeError("the call did not come to choose a backend")


def _tell(chain: Chain, problem: Problem, choice: Chosen) -> None:
    """Log, once for each reason, which backends on their own device were passed over.

    A warning where one cannot serve, information where it yields to a faster one. A backend for
    other devices was never expected to serve, and is not mentioned.
    """
    if not choice.passed:
        return
    instead, kind = choice.backend.name, _kind(problem)
    here = [each for each in choice.passed if each[0].device == kind]
    for backend, verdict in here:
        level, does = (logging.INFO, "yields") if verdict.ok else (logging.WARNING, "does not run")
        reason = verdict.reason or verdict.yields
        if is_dynamo_compiling():  # a trace has no objects to print
            line = f"{backend.name} {does} a compiled call: {reason}; {instead} runs it"
            log.once(level, (backend.name, reason), line)
            continue
        line = f"{backend.name} {does} %s (%s): %s; %s runs it"
        log.once(level, (backend.name, reason), line, chain, problem, reason, instead)
    if not here and not choice.backend.device:
        line = "no fused backend is for tensors on %s: %s runs %s (%s)"
        log.once(logging.WARNING, kind, line, kind, instead, chain, problem)


def _verdict(backend: Backend, chain: Chain, problem: Problem, torch_only: str) -> Verdict:
    if torch_only and not backend.differentiable:
        here = backend.device == _kind(problem)
        return Verdict(torch_only if here else f"tensors are on {problem.device}")
    return backend.verdict(chain, problem)


def _kind(problem: Problem) -> str:
    """The kind of its device, ``cuda`` for ``cuda:sm90``."""
    return problem.device.partition(":")[0]


def _refused(
    chain: Chain, problem: Problem, refusals: list[tuple[str, str]], others: list[str]
) -> str:
    rows = [("chain", str(chain)), ("problem", str(problem)), *refusals]
    rows += [("try", f'backend="{others[0]}"')] if others else []
    who = "no backend runs" if len(refusals) > 1 else f"{refusals[0][0]} does not run"
    width = max(len(key) for key, _ in rows)
    return "\n".join(
        [f"{who} this chain", *(f"  {key.ljust(width)}  {text}" for key, text in rows)]
    )
