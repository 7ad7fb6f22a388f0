"""The one reader of environment variables."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    ``TRANSFUSE_BACKEND`` names the backend to use where a call names none; as with a call's own
    ``backend=``, it serves or raises. ``TRANSFUSE_CORE`` is the path of another build of the
    compiled core, such as one with sanitizers; it is loaded or raises. ``TRANSFUSE_ISA`` names the
    instruction set of the core (avx512, avx2, sse2; neon; generic) instead of the best that build
    and CPU have in common; it is used or raises. ``TRANSFUSE_TUNED`` is the file of the tiles that
    ``transfuse tune`` measured, instead of ``transfuse/tuned.json`` in the user's cache.
    ``TRANSFUSE_KERNELS`` is the folder of the GPU's compiled kernels, instead of
    ``transfuse/kernels`` in the user's cache.
    """

    backend: str | None = None
    core: str | None = None
    isa: str | None = None
    tuned: str | None = None
    kernels: str | None = None


def backend() -> str | None:
    """The backend asked for; for each call, which has no time to read them all.

    Nor has it the time to encode the name: that is looked up as ``os.environ`` keeps it.
    """
    environment: Any = os.environ
    try:
        if _BACKEND not in environment._data:
            return None
    except AttributeError:  # another Python, or another mapping in its place
        pass
    return os.environ.get("TRANSFUSE_BACKEND") or None


_BACKEND = os.fsencode("TRANSFUSE_BACKEND") if os.supports_bytes_environ else "TRANSFUSE_BACKEND"


_YES = ("1", "true", "yes", "on", "y")
"""What Triton takes for a yes."""


def interpreted() -> bool:
    """Whether Triton is asked to run its kernels on the CPU, as tests do; it reads the same."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _YES


def fuses_products() -> bool:
    """Whether Triton is to add a product in one rounding; it reads the same."""
    asked = os.environ.get("TRITON_DEFAULT_FP_FUSION")
    return asked is None or asked.lower() in _YES


def read() -> Settings:
    """The settings in force now; read at each call, so that a test may change them."""
    return Settings(
        backend=backend(),
        core=os.environ.get("TRANSFUSE_CORE") or None,
        isa=os.environ.get("TRANSFUSE_ISA") or None,
        tuned=os.environ.get("TRANSFUSE_TUNED") or None,
        kernels=os.environ.get("TRANSFUSE_KERNELS") or None,
    )


def tuned() -> Path | None:
    """The user's file of tuned tiles, there or not; None where a user has no home."""
    return _named("TRANSFUSE_TUNED", "tuned.json")


def kernels() -> Path | None:
    """The user's folder of compiled kernels, there or not; None where a user has no home."""
    return _named("TRANSFUSE_KERNELS", "kernels")


def _named(variable: str, name: str) -> Path | None:
    """The path that a variable gives, or one of that name in the user's cache."""
    named = os.environ.get(variable)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(cache) if os.path.isabs(cache) else _cache(Path.home())
    except RuntimeError:
        return None
    return folder / "transfuse" / name


def _cache(home: Path) -> Path:
    """Where this platform keeps what programs can make again."""
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return home / "AppData" / "Local"
    return home / ".cache"
