"""The compiled core. The instruction set is that of the run of the tests: ``TRANSFUSE_ISA``."""

import ctypes

import pytest

from transfuse.backends.cpu import library


@pytest.fixture(scope="session")
def core() -> ctypes.CDLL:
    """Missing is a fault, not a reason to skip: nothing else would notice."""
    found = library.load()
    assert found is not None, "the compiled core is not installed"
    return found
