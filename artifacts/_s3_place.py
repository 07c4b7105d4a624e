"""Where in an S3 service the blobs lie, and how they are encrypted there: what an ``s3:`` URL says."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from attrs import frozen

from ._backend import BadArtifactsURL

OPTIONS = ("endpoint", "region", "addressing", "sse", "kms_key")
"""What may stand behind the question mark of an ``s3:`` URL."""
LONGEST_PREFIX = 256
"""Characters; what lies below it needs 400 of the 1,024 bytes that a key may have."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_ADDRESSING = ("auto", "path", "virtual")
_ENCRYPTION = ("AES256", "aws:kms", "aws:kms:dsse")
_CREDENTIALS = (
    "an s3: URL takes no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
    "or AWS_PROFILE, or give the machine a role"
)


@frozen(kw_only=True)
class Place:
    """A bucket of a service, a prefix in it, and how objects are encrypted at rest."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    addressing: str = "auto"
    sse: str | None = None
    kms_key: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def root(self) -> str:
        """What every key begins with."""
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def encryption(self) -> dict[str, str]:
        """What S3 is told with every object that it stores."""
        asked = {"ServerSideEncryption": self.sse, "SSEKMSKeyId": self.kms_key}
        return {name: value for name, value in asked.items() if value is not None}

    def check(self) -> None:
        """``BadArtifactsURL`` for what no service would take; it repeats nothing that may be a password."""
        if not _BUCKET.fullmatch(self.bucket):
            raise BadArtifactsURL(
                "no name of a bucket: it has 3 to 63 lower-case letters, digits, '.' and '-', as in "
                "'s3://bucket/prefix'"
            )
        if self.prefix and not _is_prefix(self.prefix):
            raise BadArtifactsURL(
                f"no prefix for artifacts: it has up to {LONGEST_PREFIX} letters, digits, '.', '_' and '-', "
                "in parts between single '/', none of them '.' or '..'"
            )
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
        if self.addressing not in _ADDRESSING:
            raise BadArtifactsURL(f"addressing= of an s3: URL is one of {', '.join(_ADDRESSING)}")
        if self.sse is not None and self.sse not in _ENCRYPTION:
            raise BadArtifactsURL(f"sse= of an s3: URL is one of {', '.join(_ENCRYPTION)}")
        if self.kms_key is not None and self.sse in (None, "AES256"):
            raise BadArtifactsURL("kms_key= of an s3: URL goes with sse=aws:kms")


def place_of_url(url: str) -> Place:
    """What ``s3://bucket/prefix?endpoint=...&region=...`` says; what no service would take is not checked."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise BadArtifactsURL("an s3: URL is written s3://bucket/prefix?option=value&option=value") from None
    if "@" in parts.netloc:
        raise BadArtifactsURL(_CREDENTIALS)
    if parts.fragment or "#" in url:
        raise BadArtifactsURL("an s3: URL takes no '#'; write %23 for it in a value")
    names = [name for name, _ in options]
    if any(name not in OPTIONS for name in names) or len(set(names)) < len(names):
        raise BadArtifactsURL(
            f"an s3: URL takes {', '.join(OPTIONS)}, each once, and nothing else; {_CREDENTIALS}"
        )
    return Place(bucket=parts.netloc, prefix=parts.path.strip("/"), **dict(options))


def _is_prefix(prefix: str) -> bool:
    plain = len(prefix) <= LONGEST_PREFIX and _PREFIX.fullmatch(prefix) is not None
    return plain and not {".", ".."} & set(prefix.split("/"))


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    else:
        if "@" in parts.netloc:
            raise BadArtifactsURL(_CREDENTIALS)
        fine = fine and parts.path in ("", "/") and not parts.query and not parts.fragment
    if not fine:
        raise BadArtifactsURL(
            "endpoint= of an s3: URL is an address such as https://host:port, without path or credentials"
        )
