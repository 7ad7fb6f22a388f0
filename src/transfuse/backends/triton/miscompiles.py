"""Faults of the compilers below Triton that are known: machine code is looked through for them."""

import re

_WIDENED = re.compile(r"mul\.wide\.u32\s+(%rd\d+),")
_SHIFTED = re.compile(r"shl\.b64\s+(%rd\d+), %rd\d+, (?:[12]?\d|3[01]);")
_MET = re.compile(r"or\.b64\s+(%rd\d+), (%rd\d+), (%rd\d+);")
_TAKEN_APART = re.compile(r"mov\.b64\s+\{[^}]*\}, (%rd\d+);")


def spills_over(ptx: str) -> bool:
    """Whether two shifts of 32 bits are done as halves of 64, where the lower may spill over.

    LLVM packs the shifts of two numbers into one, even where it wants the upper alone and the lower
    overflows unseen. Its backend then widens the lower to 64 bits, and the overflow reaches the
    upper.
    """
    lower = {*_WIDENED.findall(ptx), *_SHIFTED.findall(ptx)}
    met = {name for name, *parts in _MET.findall(ptx) if not lower.isdisjoint(parts)}
    return not met.isdisjoint(_TAKEN_APART.findall(ptx))
