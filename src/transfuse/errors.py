"""The exceptions of transfuse that torch has no type for.

Bad arguments raise what torch raises for the same mistake (RuntimeError, TypeError,
ValueError, NotImplementedError); these name situations that only exist here.
"""


class UnsupportedError(RuntimeError):
    """No backend, or not the backend asked for, can run this chain on this problem."""


class Declined(UnsupportedError):
    """A backend said yes and found out, before it wrote anything, that it cannot.

    From then on its verdict is no: a call that did not ask for it by name goes to the next one.
    """


class DocumentError(ValueError):
    """A problem document is broken; the message starts with ``file:line:``."""
