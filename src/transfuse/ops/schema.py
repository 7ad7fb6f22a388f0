"""The operations' names and arguments."""

import torch
from torch.library import Library

OPTIONS = (
    "float[] numbers, str chain, SymInt[] stride, SymInt[] padding, SymInt[] output_padding, "
    "SymInt[] dilation, SymInt groups, str precision"
)
"""What a chain computes, whatever its tensors: its line and numbers, and the options of a Problem.

Padding and output padding are as a Problem has them: of any sign, since they also say that the two
ends of an axis are padded unequally. Precision is ``ieee`` or ``tf32``.
"""
TENSORS = "Tensor x, Tensor weight, Tensor[] operands"
"""``operands``: those that the chain names, each once, in the order of their first mention."""
SCHEMAS = {
    "chain": f"({TENSORS}, {OPTIONS}, str backend) -> Tensor",
    "chain_updating": f"({TENSORS}, {OPTIONS}, str backend) -> (Tensor, Tensor[])",
    "chain_keeping": f"({TENSORS}, {OPTIONS}, str backend, str device) -> (Tensor, Tensor[])",
    "chain_backward": (
        f"(Tensor grad, {TENSORS}, {OPTIONS}, bool[] wanted, Tensor[]? kept=None) -> Tensor[]"
    ),
}
"""``backend``: the one asked for, or empty. ``wanted``: of x, weight and each operand. ``kept``:
what ``chain_keeping`` gave beside the result; ``device``: a Problem's, by whose rates that is
decided."""

LIBRARY = Library("transfuse", "DEF")  # type: ignore[no-untyped-call]
for name, schema in SCHEMAS.items():
    LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
