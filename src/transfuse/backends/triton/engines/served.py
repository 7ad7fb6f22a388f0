"""Which engine serves a convolution, and why those asked before it do not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Served:
    """The engine that serves a segment and its tiles; those asked before, and why they do not.

    ``share``: of the products per second that a library for matrices reaches, what these do.
    """

    engine: str
    tiles: str
    share: float
    passed_over: tuple[tuple[str, str], ...]


class Explained(NamedTuple):
    """The same for ``explain``: the steps of the segment; its engine with its tiles and where these
    come from, as text; the engines that were asked before, by name, with their reasons."""

    steps: str
    engine: str
    passed_over: Mapping[str, str]
