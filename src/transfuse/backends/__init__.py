"""The backends, in the order in which they are asked."""

from transfuse.backends.base import Backend, Verdict
from transfuse.backends.cpu import Cpu
from transfuse.backends.eager import Eager

BACKENDS: tuple[Backend, ...] = (Cpu(), Eager())

__all__ = ["BACKENDS", "Backend", "Verdict"]
