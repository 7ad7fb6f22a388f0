"""The one reader of environment variables."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    ``TRANSFUSE_BACKEND`` names the backend to use where a call names none; as with a call's own
    ``backend=``, it serves or raises. ``TRANSFUSE_CORE`` is the path of another build of the
    compiled core, such as one with sanitizers; it is loaded or raises.
    """

    backend: str | None = None
    core: str | None = None


def backend() -> str | None:
    """The backend asked for; for each call, which has no time to read them all."""
    return os.environ.get("TRANSFUSE_BACKEND") or None


def interpreted() -> bool:
    """Whether Triton is asked to run its kernels on the CPU, as tests do; it reads the same."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def read() -> Settings:
    """The settings in force now; read at each call, so that a test may change them."""
    return Settings(
        backend=backend(),
        core=os.environ.get("TRANSFUSE_CORE") or None,
    )
