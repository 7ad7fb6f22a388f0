"""The backends, in the order in which they are asked."""

from transfuse.backends.base import Backend, Verdict
from transfuse.backends.cpu import Cpu
from transfuse.backends.eager import Eager
from transfuse.backends.triton import Triton

BACKENDS: tuple[Backend, ...] = (Cpu(), Triton(), Eager())

__all__ = ["BACKENDS", "Backend", "Verdict"]
