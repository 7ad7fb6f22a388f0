"""How many threads the core uses: as many as torch does, and one in a forked child.

OpenMP's threads do not survive a fork, and OpenMP does not notice: a parallel region in the child,
the core's or torch's, waits for them for ever. Whether the parent had started any cannot be known.
"""

import os

import torch

_inherited = 0
"""torch's number of threads when this process was forked, until the core is first used in it."""


def count() -> int:
    """The number for the next call; a forked child first goes down to one, unless it chose itself.

    Then torch does too: the core compares and copies weights with it.
    """
    global _inherited
    if _inherited:
        if torch.get_num_threads() == _inherited > 1:
            torch.set_num_threads(1)
        _inherited = 0
    return torch.get_num_threads()


def _forked() -> None:
    global _inherited
    _inherited = torch.get_num_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
