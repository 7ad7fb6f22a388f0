"""A compiled kernel as the bytes of a file: machine code and what it takes to launch it.

A file begins with a word that says what it is, then a digest of all that follows. What follows is
compressed: the length of a header, the header in JSON, the machine code.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

MAGIC = b"transfuse kernel 1\n"
"""The first bytes of a file; another way to write one is another number."""
DIGEST = sha256().digest_size
LENGTH = 4
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 4, "pb": 4}]
"""Instructions are of 16 bytes."""


class Damaged(ValueError):
    """Why bytes are not the entry that they should be."""


@dataclass(frozen=True)
class Entry:
    """A kernel that was compiled, and looked through for known faults.

    ``descriptors``: for each tensor descriptor among its arguments, in order, the ``map`` that it
    is encoded as (type, bytes of an element, box, swizzle); where the GPU knows no maps, the
    ``words`` that are passed in its place.
    """

    key: str
    name: str
    architecture: str
    triton: str
    shared: int
    warps: int
    descriptors: tuple[Mapping[str, Any], ...]
    code: bytes


def dumped(entry: Entry) -> bytes:
    """An entry as the bytes of a file."""
    known = {name: value for name, value in vars(entry).items() if name != "code"}
    head = json.dumps(known, sort_keys=True).encode()
    content = len(head).to_bytes(LENGTH, "little") + head + entry.code
    body = lzma.compress(content, lzma.FORMAT_XZ, filters=FILTERS)
    return MAGIC + sha256(body).digest() + body


def parsed(data: bytes, key: str) -> Entry:
    """The entry of that key in the bytes of a file; raises ``Damaged``."""
    if not data.startswith(MAGIC):
        raise Damaged("not a compiled kernel, or one of another version of transfuse")
    digest, body = data[len(MAGIC) :][:DIGEST], data[len(MAGIC) + DIGEST :]
    if sha256(body).digest() != digest:
        raise Damaged("damaged or half written: its digest is another one")
    try:
        content = lzma.decompress(body)
        start = LENGTH + int.from_bytes(content[:LENGTH], "little")
        known = json.loads(content[LENGTH:start])
        entry = Entry(**known | {"descriptors": tuple(known["descriptors"])}, code=content[start:])
    except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"not a compiled kernel: {type(error).__name__}: {error}") from None
    if entry.key != key:
        raise Damaged(f"the kernel in it is another one, {entry.key}")
    return entry
