"""Other libraries' arrays as torch tensors over the same memory."""

import warnings

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def adopt(name: str, array: object, writable: bool = False) -> Tensor:
    """A torch tensor, a NumPy array or anything with DLPack, as a tensor; nothing is copied.

    The one exception: torch has no negative strides, so a NumPy input that has them is copied.
    """
    if isinstance(array, Tensor):
        return array.detach()
    if isinstance(array, np.ndarray):
        return _from_numpy(name, array, writable)
    if hasattr(array, "__dlpack__"):
        return from_dlpack(array)
    raise TypeError(
        f"{name} must be a torch tensor, a NumPy array or support DLPack, not "
        f"{type(array).__name__}"
    )


def _from_numpy(name: str, array: np.ndarray, writable: bool) -> Tensor:
    if writable and not array.flags.writeable:
        raise ValueError(f"{name} is a read-only NumPy array")
    if any(stride < 0 for stride in array.strides):
        if writable:
            raise ValueError(f"{name} has negative strides {array.strides}; torch has none")
        array = array.copy()
    # bfloat16 is not NumPy's own (ml_dtypes brings it), so torch meets it as 16-bit integers.
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        tensor = torch.from_numpy(bits)
    return tensor if bits is array else tensor.view(torch.bfloat16)
