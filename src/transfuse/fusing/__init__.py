"""Models: their transposed convolutions found, with what stands around them, and fused.

>>> fused = transfuse.fuse(model)
>>> print(fused.explain())
"""

from transfuse.fusing.explaining import FusedModel, explain
from transfuse.fusing.installing import fuse, unfuse

__all__ = ["FusedModel", "explain", "fuse", "unfuse"]
