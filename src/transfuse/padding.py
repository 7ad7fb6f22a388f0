"""Padding in every form it is given in, and the sizes asked for: what a Problem makes of them.

Before any padding an axis has ``(n-1)*s + d*(k-1) + 1`` outputs. A pair ``(before, after)`` takes
so many away at its two ends; a negative number adds as many, which hold the bias alone. That is a
padding of ``before`` and an output padding of ``output_padding + before - after``, both of any
sign. Engines know these two and nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from torch import SymInt

from transfuse.geometry import LARGEST, Axis, bounded, integer, one_each
from transfuse.problem import Problem

Same = Literal["same", "same_upper", "same_lower"]
Pair = tuple[int, int]
Padding = int | Sequence[int] | Sequence[Pair] | Same
Read = tuple[int, ...] | list[Pair] | Same


def read(padding: Any) -> Read:
    """Padding as a tuple of integers, a list of pairs or a word; for others torch's TypeError."""
    if isinstance(padding, str):
        if padding not in (words := get_args(Same)):
            raise TypeError(f"padding must be an integer, not str ({padding!r}), or one of {words}")
        return padding  # type: ignore[return-value]
    given = padding if isinstance(padding, list | tuple) else (padding,)
    if given and all(isinstance(each, list | tuple) for each in given):
        return [_pair(each) for each in given]
    return tuple(integer("padding", each) for each in given)


def _pair(given: Sequence[object]) -> Pair:
    if len(given) != 2:
        raise TypeError(f"padding must be a pair (before, after) for each axis, not {given!r}")
    before, after = (integer("padding", each) for each in given)
    return before, after


def sizes(output_size: Any) -> tuple[int, ...] | None:
    """An output size as integers; TypeError for what is no list of them.

    One that a trace leaves open stays so.
    """
    if output_size is None:
        return None
    if not isinstance(output_size, list | tuple):
        kind = type(output_size).__name__
        raise TypeError(f"output_size must be a list of integers, not {kind} ({output_size!r})")
    found: list[Any] = [
        each if isinstance(each, SymInt) else integer("output_size", each) for each in output_size
    ]
    return tuple(found)


def integers(padding: Read, rank: int) -> tuple[int, ...]:
    """One for each axis, where padding is given so; 0 where it is given in another form."""
    return one_each("padding", padding, rank) if isinstance(padding, tuple) else (0,) * rank


def padded(problem: Problem, padding: Read) -> Problem:
    """A problem padded with ``integers``, padded as it was given."""
    if isinstance(padding, tuple):
        return problem
    if isinstance(padding, str):
        if padding == "same" and any(problem.output_padding):
            raise ValueError(
                f"conv_transpose{problem.rank}d: padding='same' leaves nothing to choose, but got "
                f"output_padding={list(problem.output_padding)}; 'same_upper' takes it, as in ONNX"
            )
        pairs = tuple(_same(padding, axis) for axis in problem.axes)
    else:
        pairs = one_each("padding", tuple(padding), problem.rank, "pair")
        ends = [end for pair in pairs for end in pair]
        bounded(f"conv_transpose{problem.rank}d", "padding", ends, LARGEST, -LARGEST)
    moved = (more + b - a for more, (b, a) in zip(problem.output_padding, pairs, strict=True))
    return replace(problem, padding=tuple(b for b, _ in pairs), output_padding=tuple(moved))


def sized(
    problem: Problem,
    padding: Read,
    output_size: Sequence[int],
    inputs: Sequence[int],
    batched: bool,
) -> Problem:
    """A problem padded with ``integers``, padded as it was given and with outputs as asked for.

    ``inputs`` are the sizes that the convolution meets, behind any pool before it. As in torch,
    sizes may come with those of batch and channels in front, which are not looked at.
    """
    if any(problem.output_padding):
        raise ValueError(
            f"conv_transpose{problem.rank}d: output_size and output_padding say the same thing in "
            f"two ways, but got output_size={list(output_size)} and "
            f"output_padding={list(problem.output_padding)}"
        )
    lead = 2 if batched else 1
    if len(output_size) == problem.rank + lead:
        output_size = output_size[lead:]
    if len(output_size) != problem.rank:
        raise ValueError(
            f"conv_transpose{problem.rank}d: for {problem.rank + lead}D input, output_size must "
            f"have {problem.rank} or {problem.rank + lead} elements (got {len(output_size)})"
        )
    problem, word = padded(problem, padding), isinstance(padding, str)
    axes = problem.at(tuple(inputs)).axes
    least = [axis.size for axis in axes]
    most = [axis.size + (0 if word else axis.stride - 1) for axis in axes]
    rows = list(zip(output_size, least, most, problem.output_padding, strict=True))
    if any(size < low or size > high for size, low, high, _ in rows):
        raise ValueError(
            f"conv_transpose{problem.rank}d: requested an output size of {list(output_size)}, but "
            f"valid sizes range from {least} to {most} (for an input of {list(inputs)}"
            + (f" and padding={padding!r})" if word else ")")
        )
    return replace(problem, output_padding=tuple(at + size - low for size, low, _, at in rows))


def _same(word: Same, axis: Axis) -> Pair:
    """What to take away so that ``n * stride`` outputs are left.

    ``same`` is that of Keras and TensorFlow, who never add outputs before the first. ONNX halves
    a negative total, too, and counts ``output_padding`` among the outputs to be taken away.
    """
    total = axis.dilation * (axis.k - 1) + 1 + axis.output_padding - axis.stride
    if word == "same":
        before = max(total, 0) // 2
    else:
        before = total // 2 if word == "same_upper" else total - total // 2
    return before, total - before
