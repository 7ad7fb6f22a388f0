"""The problem documents and their loader."""

from transfuse.problems.document import (
    Document,
    Parameter,
    UnknownSlugError,
    document,
    load,
    parse,
    slugs,
    unknown,
)

__all__ = [
    "Document",
    "Parameter",
    "UnknownSlugError",
    "document",
    "load",
    "parse",
    "slugs",
    "unknown",
]
