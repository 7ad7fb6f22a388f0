"""Which backend runs a chain: the first that says yes, or the one asked for, or an error."""

from transfuse import settings
from transfuse.backends import BACKENDS as BACKENDS
from transfuse.backends import Backend, Verdict
from transfuse.chain import Chain
from transfuse.errors import UnsupportedError
from transfuse.problem import Problem


def choose(
    chain: Chain, problem: Problem, name: str | None = None, torch_only: str = ""
) -> Backend:
    """The backend for this call; asked for by name, it serves or raises.

    ``torch_only``: why the call must run as torch operations, if it must.
    """
    wanted = name or settings.read().backend
    candidates = [each for each in BACKENDS if wanted in (None, each.name)]
    if not candidates:
        known = ", ".join(each.name for each in BACKENDS)
        raise ValueError(f"unknown backend {wanted!r}; known: {known}")
    refusals = []
    for backend in candidates:
        verdict = _verdict(backend, chain, problem, torch_only)
        if verdict.ok and (wanted or not verdict.yields):
            return backend
        refusals.append((backend.name, str(verdict)))
    others = [e.name for e in BACKENDS if _verdict(e, chain, problem, torch_only).ok]
    raise UnsupportedError(_refused(chain, problem, refusals, others))


def _verdict(backend: Backend, chain: Chain, problem: Problem, torch_only: str) -> Verdict:
    if torch_only and not backend.differentiable:
        return Verdict(torch_only)
    return backend.verdict(chain, problem)


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
