"""The one place that speaks to S3: the driver's client, its limits, and its errors turned into the seam's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from anyio import CancelScope, fail_after, move_on_after, to_thread
from attrs import frozen

from ._backend import ArtifactError, ArtifactsUnavailable, BadArtifactsURL
from ._s3_place import Place

CONNECTIONS = 32
"""Connections to the service at once; whoever needs one more waits. None is held between two calls."""
ATTEMPTS = 5
"""Tries of one call, with growing pauses between them, where the service throttles or does not answer."""
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
"""How long a connection may take to come about, and how long the service may be silent."""
CALL_SECONDS, SLOWEST = 120.0, 100_000
"""How long a call may take with all of its tries, and the bytes a second by which a body makes it longer."""
UNDO_SECONDS = 20.0
"""How long the clearing up may take that a cancelled caller waits for."""
RESUMES = 5
"""Broken connections within one range after which a read gives up."""

_BUSY = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests"})

# The driver is loaded when a backend is opened, so it is not there for type checkers: its objects are Any.


class Gone(ArtifactError):
    """There is no object, or no upload, of this name."""


class Changed(ArtifactError):
    """The object is not the one that was looked at."""


@frozen(kw_only=True)
class Object:
    """An object as a listing shows it."""

    key: str
    size_bytes: int
    modified: int
    """Microseconds since the Unix epoch, by the service's clock."""


class Service:
    """A client of one bucket. A call gives what the service answers, or an error of the seam.

    ``Gone`` and ``Changed`` are for the backend to explain. Whatever else the service refuses is an
    ``ArtifactError`` that says what was asked and the service's word for the reason, and no more: neither
    credentials nor what a service may repeat of them.
    """

    def __init__(self, place: Place) -> None:
        if find_spec("aiobotocore") is None:
            raise BadArtifactsURL("s3: needs a driver that is not installed: pip install 'perdure[aws]'")
        self.place = place
        self._client: Any = None
        self._undoing: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Make the client; nothing is sent."""
        session = await to_thread.run_sync(_session)
        with self._mapped("open a client"):
            self._client = await session.create_client(
                "s3",
                region_name=self.place.region or session.get_config_variable("region") or "us-east-1",
                endpoint_url=self.place.endpoint,
                config=_config(self.place),
            ).__aenter__()

    async def close(self) -> None:
        """Wait for what is being cleared up, and close the client."""
        client, self._client = self._client, None
        if client is not None:
            with CancelScope(shield=True):
                if self._undoing:
                    await asyncio.wait(self._undoing)
                await client.__aexit__(None, None, None)

    def check_open(self) -> None:
        self._opened()

    async def call(self, operation: str, /, **asked: Any) -> Mapping[str, Any]:
        """One call of S3, named as the driver names it, on the bucket."""
        body = asked.get("Body")
        seconds = CALL_SECONDS + (len(body.getbuffer()) / SLOWEST if body is not None else 0)
        method = getattr(self._opened(), operation)
        with self._mapped(operation), fail_after(seconds):
            answer: Mapping[str, Any] = await method(Bucket=self.place.bucket, **asked)
        return answer

    async def read(self, key: str, start: int, stop: int, etag: str | None) -> tuple[bytes, str]:
        """The bytes from ``start`` to before ``stop``, and the ETag of the object that they are of.

        Where a connection breaks, the next goes on behind what has come. ``Changed`` where the object is not
        the one of that ETag, or has fewer bytes.
        """
        read = bytearray()
        broken = 0
        while len(read) < stop - start:
            only = {} if etag is None else {"IfMatch": etag}
            first = start + len(read)
            answer = await self.call("get_object", Key=key, Range=f"bytes={first}-{stop - 1}", **only)
            etag = str(answer["ETag"])
            try:
                with self._mapped("get_object"), fail_after(CALL_SECONDS + (stop - first) / SLOWEST):
                    async with answer["Body"] as body:
                        while piece := await body.read(stop - start - len(read)):
                            read += piece
            except ArtifactsUnavailable:
                broken += 1
                if broken > RESUMES:
                    raise
        return bytes(read), etag or ""

    async def objects(
        self, prefix: str, *, after: str = "", page: int = 1000
    ) -> AsyncGenerator[Object, None]:
        """Objects whose keys begin with ``prefix`` and sort behind ``after``, in order, page by page."""
        start: dict[str, str] = {"StartAfter": after} if after else {}
        while True:
            answer = await self.call("list_objects_v2", Prefix=prefix, MaxKeys=page, **start)
            for found in answer.get("Contents", ()):
                modified = int(found["LastModified"].timestamp() * 1_000_000)
                yield Object(key=found["Key"], size_bytes=found["Size"], modified=modified)
            if not answer["IsTruncated"]:
                return
            start = {"ContinuationToken": answer["NextContinuationToken"]}

    async def abort_uploads(self, prefix: str, *, before: int | None = None) -> None:
        """End up to 1,000 uploads of keys that begin so; all, or those begun before a time (microseconds)."""
        answer = await self.call("list_multipart_uploads", Prefix=prefix)
        for found in answer.get("Uploads", ()):
            if before is None or found["Initiated"].timestamp() * 1_000_000 < before:
                with suppress(Gone):
                    await self.call("abort_multipart_upload", Key=found["Key"], UploadId=found["UploadId"])

    async def link(self, key: str, seconds: int) -> str:
        """A signed address from which anybody can fetch the object for that long."""
        asked = {"Bucket": self.place.bucket, "Key": key, "ResponseContentDisposition": "attachment"}
        with self._mapped("sign a link"):
            url = await self._opened().generate_presigned_url("get_object", Params=asked, ExpiresIn=seconds)
        return str(url)

    async def undo(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Clear up, whatever cancels the caller; what cannot be cleared now is found at a later opening."""

        async def bounded() -> None:
            with suppress(ArtifactError), move_on_after(UNDO_SECONDS):
                await work()

        # asyncio's own cancel goes through the shield of a scope, but not into another task.
        task = asyncio.get_running_loop().create_task(bounded())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        with CancelScope(shield=True):
            await asyncio.shield(task)

    def _opened(self) -> Any:
        if self._client is None:
            raise ArtifactError(f"{self.place} is not open: use `async with`")
        return self._client

    @contextmanager
    def _mapped(self, doing: str) -> Generator[None]:
        errors = import_module("botocore.exceptions")
        try:
            yield
        except errors.ClientError as error:
            raise self._refused(doing, error.response) from error
        except (errors.NoCredentialsError, errors.PartialCredentialsError, errors.ProfileNotFound) as error:
            raise ArtifactError(f"{self.place}: no credentials: {_WHERE}") from error
        except (
            errors.ConnectionError,
            errors.HTTPClientError,
            errors.IncompleteReadError,
            errors.ResponseStreamingError,
        ) as error:
            raise self._unavailable(doing, type(error).__name__) from error
        except errors.BotoCoreError as error:
            raise ArtifactError(f"{self.place}: cannot {doing}: {type(error).__name__}") from error
        except (OSError, import_module("aiohttp").ClientError) as error:
            raise self._unavailable(doing, type(error).__name__) from error

    def _refused(self, doing: str, answer: Mapping[str, Any]) -> ArtifactError:
        code = str(answer.get("Error", {}).get("Code", "unknown"))
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket":
            return ArtifactError(f"{self.place}: there is no such bucket: make it, or name another")
        if status == 404:
            return Gone(f"{self.place}: {doing}: {code}")
        if status in (412, 416):
            return Changed(f"{self.place}: {doing}: {code}")
        if status in (429, *range(500, 600)) or code in _BUSY:
            return self._unavailable(doing, code)
        if status in (401, 403):
            return ArtifactError(f"{self.place}: {doing} is not allowed ({code}): {_WHERE}; {_RIGHTS}")
        return ArtifactError(f"{self.place}: {doing} was refused ({code})")

    def _unavailable(self, doing: str, why: str) -> ArtifactsUnavailable:
        at = f" at {self.place.endpoint}" if self.place.endpoint is not None else ""
        return ArtifactsUnavailable(f"{self.place}{at}: {doing} failed ({why}): try again later")


_WHERE = (
    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role"
)
_RIGHTS = (
    "they need s3:ListBucket and s3:ListBucketMultipartUploads on the bucket, and s3:GetObject, "
    "s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on what lies in it"
)


def _session() -> Any:
    """A driver's session that has read its files, so that making a client reads none on the loop."""
    session = import_module("aiobotocore.session").get_session()
    session.warm_up_loader_caches("s3")
    with suppress(import_module("botocore.exceptions").ProfileNotFound):
        session.full_config  # noqa: B018  # reads the configuration, and keeps it
    return session


def _config(place: Place) -> Any:
    return import_module("aiobotocore.config").AioConfig(
        signature_version="s3v4",
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        # Each upload brings its checksum, and each blob its digest: what the driver would add is unknown to
        # many services that are not Amazon's.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": place.addressing},
    )
