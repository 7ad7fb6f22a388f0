"""The backends, in the order in which they are asked."""

from transfuse.backends.base import Backend, Verdict
from transfuse.backends.eager import Eager

BACKENDS: tuple[Backend, ...] = (Eager(),)

__all__ = ["BACKENDS", "Backend", "Verdict"]
