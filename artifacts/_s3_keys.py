"""How a blob's copies are named in a bucket, so that a listing says all there is to know and is in order.

Below the prefix lie ``staging/``, an object for each large put that is under way; ``blobs/``, with a folder
for each workspace and in it the copies of its blobs; and ``labels/``, where a label stands that is too long
for its folder's name.

A copy is named by the blob's digest, the time at which it was published and a random number. No key is ever
written twice, so nothing is overwritten, and whoever deletes the copies that it has seen cannot hit one that
was published meanwhile. It asks nothing of the service but that a listing shows what was written before.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid

from attrs import frozen

LONGEST_NAME = 128
"""Bytes of a label that fit into the name of its folder."""

_COPY = re.compile(r"([^/]+)/([0-9a-f]{64})\.([0-9]{20})\.[0-9a-f]{32}")
_EMPTY = "-"
"""Stands for the empty label, since an empty name would be no folder; it sorts before every digit."""
_BEHIND = "~"
"""Sorts behind whatever follows a digest in a key."""


@frozen(kw_only=True)
class Copy:
    """One stored copy of a blob. The newest is the blob; those before it are on their way out."""

    key: str
    folder: str
    sha256: str
    modified: int
    """Microseconds since the Unix epoch at which it was published."""
    size_bytes: int


@frozen(kw_only=True)
class Keys:
    """The keys below one prefix, which is empty or ends with '/'."""

    root: str

    @property
    def staging(self) -> str:
        return f"{self.root}staging/"

    def new_staging(self) -> str:
        return self.staging + uuid.uuid4().hex

    def label(self, folder: str) -> str:
        return f"{self.root}labels/{folder}"

    def blobs(self, folder: str | None = None) -> str:
        """What the keys of all copies begin with, or of those in one folder."""
        return f"{self.root}blobs/" if folder is None else f"{self.root}blobs/{folder}/"

    def copies(self, folder: str, sha256: str) -> str:
        """What the keys of a blob's copies begin with."""
        return f"{self.blobs(folder)}{sha256}."

    def behind(self, folder: str, sha256: str) -> str:
        """What sorts behind the copies of a blob and before the next blob."""
        return self.copies(folder, sha256) + _BEHIND

    def new_copy(self, folder: str, sha256: str, modified: int) -> str:
        return f"{self.copies(folder, sha256)}{modified:020d}.{uuid.uuid4().hex}"

    def copy_of(self, key: str, size_bytes: int) -> Copy | None:
        """What a key below ``blobs`` says; None for what others put there."""
        found = _COPY.fullmatch(key.removeprefix(self.blobs()))
        if found is None:
            return None
        folder, sha256, modified = found.groups()
        return Copy(key=key, folder=folder, sha256=sha256, modified=int(modified), size_bytes=size_bytes)


def folder_of(label: str) -> str:
    """A name for any label, its own for each, at most 254 letters and digits, and sorted as the labels are.

    Base 32 with the digits in the order of their values keeps the order of the bytes, and every digit sorts
    behind '/', so that services which sort folder by folder agree with those which sort keys. Of a label over
    ``LONGEST_NAME`` bytes the name has the beginning and a digest: two such labels that begin alike are
    sorted by their digests.
    """
    content = label.encode("utf-8", "surrogatepass")
    if len(content) <= LONGEST_NAME:
        return _digits(content)
    return f"{_digits(content[:LONGEST_NAME])}z{_digits(hashlib.sha256(content).digest()[:30])}"


def label_of(folder: str) -> str | None:
    """The label of a folder's name; None where the name is no label's or does not hold the whole of it."""
    digits = "" if folder == _EMPTY else folder
    try:
        padded = digits.upper() + "=" * (-len(digits) % 8)
        label = base64.b32hexdecode(padded).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return label if folder_of(label) == folder else None


def is_cut(folder: str) -> bool:
    """Whether the name holds only the beginning of its label."""
    return "z" in folder


def _digits(content: bytes) -> str:
    return base64.b32hexencode(content).decode().rstrip("=").lower() or _EMPTY
