"""The compiled core, and every instruction set of it that this machine runs."""

import ctypes
from collections.abc import Iterator

import pytest

from transfuse.backends.cpu import library

CORE = library.load()
ISAS = CORE.transfuse_isas().decode().split() if CORE else ["none"]


@pytest.fixture(scope="session")
def core() -> ctypes.CDLL:
    """Missing is a fault, not a reason to skip: nothing else would notice."""
    assert CORE is not None, "the compiled core is not installed"
    return CORE


@pytest.fixture(params=ISAS, scope="module")
def isa(request: pytest.FixtureRequest, core: ctypes.CDLL) -> Iterator[str]:
    """Each instruction set in turn; afterwards the one that was in use."""
    before = core.transfuse_isa()
    library.check(core, core.transfuse_use_isa(request.param.encode()))
    yield request.param
    library.check(core, core.transfuse_use_isa(before))
