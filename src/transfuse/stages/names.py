"""Operands by name, as a stage that runs has them: tensors are lifted out of it before."""

from transfuse.stages.base import Operand


def named(operand: Operand) -> str:
    assert isinstance(operand, str), "a stage that runs names its tensors"
    return operand


def optional(operand: Operand) -> str | None:
    return None if operand is None else named(operand)
