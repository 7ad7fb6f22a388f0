"""The logger ``transfuse``: what a user should know, each thing once in a process.

No handler is installed but the one that does nothing, as libraries do: ``logging.basicConfig()``
in a program shows warnings, ``logging.getLogger("transfuse").setLevel("INFO")`` the rest.
"""

import logging
from collections.abc import Hashable

LOGGER = logging.getLogger("transfuse")
LOGGER.addHandler(logging.NullHandler())

MOST = 1024
"""Lines remembered as said; one more, and all are forgotten."""
_said: dict[Hashable, object] = {}


def once(level: int, what: Hashable, line: str, *arguments: object) -> bool:
    """Log a line, ``%s`` standing for its arguments, unless one about ``what`` was logged before.

    Whether it is; what nobody would have been shown does not count as said.
    """
    if not LOGGER.isEnabledFor(level):
        return False
    if len(_said) >= MOST:
        _said.clear()
    mine = object()
    said = _said.setdefault(what, mine) is mine  # one step, so of two threads one logs
    if said:
        LOGGER.log(level, line, *arguments)
    return said


# As torch.compiler.assume_constant_result does, without loading the compiler: where torch.compile
# traces a call, this is run, not traced, and needs plain numbers and texts for arguments.
once._dynamo_marked_constant = True  # type: ignore[attr-defined]
