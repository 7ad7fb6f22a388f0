"""The exceptions of transfuse that torch has no type for.

Bad arguments raise what torch raises for the same mistake (RuntimeError, TypeError,
ValueError, NotImplementedError); these two name situations that only exist here.
"""


class UnsupportedError(RuntimeError):
    """No backend, or not the backend asked for, can run this chain on this problem."""


class DocumentError(ValueError):
    """A problem document is broken; the message starts with ``file:line:``."""
