"""Which backend runs a chain: the first that says yes, or the one asked for, or an error."""

from transfuse import settings
from transfuse.backends import BACKENDS, Backend
from transfuse.chain import Chain
from transfuse.errors import UnsupportedError
from transfuse.problem import Problem


def choose(chain: Chain, problem: Problem, name: str | None = None) -> Backend:
    """The backend for this call; asked for by name, it serves or raises."""
    wanted = name or settings.read().backend
    candidates = [each for each in BACKENDS if wanted in (None, each.name)]
    if not candidates:
        known = ", ".join(each.name for each in BACKENDS)
        raise ValueError(f"unknown backend {wanted!r}; known: {known}")
    refusals = []
    for backend in candidates:
        verdict = backend.verdict(chain, problem)
        if verdict.ok:
            return backend
        refusals.append((backend.name, verdict.reason))
    raise UnsupportedError(_refused(chain, problem, refusals))


def _refused(chain: Chain, problem: Problem, refusals: list[tuple[str, str]]) -> str:
    rows = [("chain", str(chain)), ("problem", str(problem)), *refusals]
    others = [each.name for each in BACKENDS if each.verdict(chain, problem).ok]
    rows += [("try", f'backend="{others[0]}"')] if others else []
    who = "no backend runs" if len(refusals) > 1 else f"{refusals[0][0]} does not run"
    width = max(len(key) for key, _ in rows)
    return "\n".join(
        [f"{who} this chain", *(f"  {key.ljust(width)}  {text}" for key, text in rows)]
    )
