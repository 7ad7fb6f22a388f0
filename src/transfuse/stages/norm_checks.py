"""What is asked of the arguments of a norm, and of the values that it is to normalise."""

from numbers import Real
from typing import Any

from transfuse.geometry import integer
from transfuse.problem import Shape
from transfuse.stages.base import Operand


def more_than_one_value(name: str, values: int, shape: Shape) -> None:
    if values == 1:
        raise ValueError(
            f"{name}: expected more than 1 value per channel, got an input of {list(shape.dims)}"
        )


def expect_flag(stage: str, name: str, given: object) -> None:
    if not isinstance(given, bool):
        raise TypeError(f"{stage}: {name} must be bool, not {type(given).__name__}")


def expect_eps(stage: str, given: object) -> None:
    if given is None:  # which only rms_norm takes
        raise TypeError(f"{stage}: eps must be float, not NoneType")


def numbers(stage: str, **given: Any) -> tuple[float, ...]:
    """The arguments by name as floats."""
    for name, value in given.items():
        if not isinstance(value, Real):
            raise TypeError(f"{stage}: {name} must be float, not {type(value).__name__}")
    return tuple(map(float, given.values()))


def expect_running(stage: str, flag: str, own: bool, mean: Operand, var: Operand) -> None:
    """Running statistics are both there, or neither; without those of the values, they are."""
    given = (("running_mean", mean), ("running_var", var))
    missing = [name for name, each in given if each is None]
    if not own and missing:
        raise RuntimeError(
            f"{stage}: without {flag} it normalises with the running statistics, and "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            f"pass running_mean and running_var, or {flag}=True for the statistics of the "
            f"{'batch' if stage == 'batch_norm' else 'values'}"
        )
    if len(missing) == 1:
        raise ValueError(
            f"{stage}: running_mean and running_var must be given both or neither, and "
            f"{missing[0]} is missing"
        )


def sizes(stage: str, given: object) -> str | tuple[int, ...]:
    """What ``normalized_shape`` says."""
    if isinstance(given, str):
        if given != "channels":
            raise ValueError(
                f"{stage}: normalized_shape must be the sizes of the last axes or 'channels', "
                f"not {given!r}"
            )
        return given
    each = given if isinstance(given, list | tuple) else (given,)
    if not each:
        raise RuntimeError(f"{stage}: expected normalized_shape to hold at least one size")
    return tuple(integer(f"{stage} normalized_shape", size) for size in each)
