"""Artifact backends by URL."""

from __future__ import annotations

from urllib.parse import unquote

from ._backend import ArtifactBackend, BadArtifactsURL
from ._files import FileArtifacts
from ._memory import MemoryArtifacts
from ._s3 import S3Artifacts
from ._s3_place import place_of_url


def open_artifacts(url: str, /) -> ArtifactBackend:
    """The backend that a URL names; it is opened when it is entered.

    ``file:artifacts`` and ``file:relative/dir`` lie below the current folder, ``file:///absolute/dir`` does
    not; percent-escapes are decoded. ``memory:`` is new and empty with each call.
    ``s3://bucket/prefix?endpoint=...&region=...`` is a bucket, with the options of ``S3Artifacts``; it takes
    no credentials. Others raise ``BadArtifactsURL``, which repeats no more of the URL than its scheme: there
    may be a password in it.
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
    if scheme == "s3":
        place = place_of_url(url)
        return S3Artifacts(
            place.bucket,
            place.prefix,
            endpoint=place.endpoint,
            region=place.region,
            addressing=place.addressing,
            sse=place.sse,
            kms_key=place.kms_key,
        )
    raise BadArtifactsURL(f"unknown artifacts URL scheme {scheme!r}; known are 'file:', 'memory:' and 's3:'")


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
