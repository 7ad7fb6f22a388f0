"""Tensor maps of tensors that calls bring: they follow these from place to place."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton.parameters import MAP, PLACES, MovingMap


class Described:
    """A map that is its address, written out; how often it was encoded."""

    def __init__(self, number: int) -> None:
        self.boxes, self.encodings = SimpleNamespace(number=number), 0

    def encoded(self, given: Sequence[int]) -> bytes:
        self.encodings += 1
        return given[self.boxes.number].to_bytes(MAP, "little")


def address(view: memoryview) -> int:
    return int.from_bytes(view, "little")


def test_a_map_follows_its_tensor() -> None:
    described, view = Described(1), memoryview(bytearray(MAP))
    moving = MovingMap(described, view)  # type: ignore[arg-type]
    for place in (512, 512, 1024, 512, 1024):
        moving.follow([64, place, 128])
        assert address(view) == place
    assert described.encodings == 2, "places that come again are known"


def test_few_places_are_kept() -> None:
    described, view = Described(0), memoryview(bytearray(MAP))
    moving = MovingMap(described, view)  # type: ignore[arg-type]
    for place in range(16, 16 * 200, 16):
        moving.follow([place])
        assert address(view) == place
        assert len(moving.kept) <= PLACES
