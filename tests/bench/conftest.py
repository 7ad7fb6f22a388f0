"""Ceilings small enough for tests."""

import pytest


@pytest.fixture
def quick_ceilings(monkeypatch):
    """Ceilings of tiny copies and products: the runs under test are not about them."""
    monkeypatch.setattr("transfuse.bench.ceilings.COPIES", {"cpu": (2**16, 2**20)})
    monkeypatch.setattr("transfuse.bench.ceilings.MOVES", {"cpu": (2**16, 2**20)})
    monkeypatch.setattr("transfuse.bench.ceilings.PRODUCTS", {"cpu": (64,)})
