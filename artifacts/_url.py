"""Artifact backends by URL."""

from __future__ import annotations

from urllib.parse import unquote

from ._backend import ArtifactBackend, BadArtifactsURL
from ._files import FileArtifacts
from ._memory import MemoryArtifacts


def open_artifacts(url: str, /) -> ArtifactBackend:
    """The backend that a URL names; it is opened when it is entered.

    ``file:artifacts`` and ``file:relative/dir`` lie below the current folder, ``file:///absolute/dir`` does
    not; percent-escapes are decoded. ``memory:`` is new and empty with each call. Others raise
    ``BadArtifactsURL``, which repeats no more of the URL than its scheme: there may be a password in it.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise BadArtifactsURL("an artifacts URL begins with its scheme, as in 'file:artifacts' or 'memory:'")
    if scheme == "memory":
        if rest not in ("", "//"):
            raise BadArtifactsURL("memory: takes nothing behind the colon")
        return MemoryArtifacts()
    if scheme == "file":
        return FileArtifacts(_path(rest))
    raise BadArtifactsURL(f"unknown artifacts URL scheme {scheme!r}; known are 'file:' and 'memory:'")


def _path(rest: str) -> str:
    if "?" in rest or "#" in rest:
        raise BadArtifactsURL("a file: URL takes neither '?' nor '#'; write %3F or %23 for them in a name")
    if rest.startswith("//"):
        rest = rest.removeprefix("//")
        if not rest.startswith("/"):
            raise BadArtifactsURL("file://... names a host; write file:///absolute/dir or file:relative/dir")
    path = unquote(rest)
    if not path or "\0" in path:
        raise BadArtifactsURL("a file: URL names a folder, as in 'file:artifacts'")
    return path
