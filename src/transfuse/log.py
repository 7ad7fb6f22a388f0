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


def once(level: int, what: Hashable, line: str, *arguments: object) -> None:
    """Log a line, ``%s`` standing for its arguments, unless one about ``what`` was logged before.

    What nobody would have been shown does not count as said.
    """
    if not LOGGER.isEnabledFor(level):
        return
    if len(_said) >= MOST:
        _said.clear()
    mine = object()
    if _said.setdefault(what, mine) is mine:  # one step, so of two threads one logs
        LOGGER.log(level, line, *arguments)
