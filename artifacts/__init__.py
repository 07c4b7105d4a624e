"""Large and binary outputs: blobs addressed by (workspace, sha256), visible only when whole.

The contract that any backend can run against itself is ``perdure.artifacts.contract``.
"""

from ._backend import (
    ArtifactBackend,
    ArtifactError,
    ArtifactsUnavailable,
    BadArtifactsURL,
    Blob,
    BlobDamaged,
    BlobPage,
    NoSuchBlob,
    Staged,
)
from ._files import FileArtifacts
from ._memory import MemoryArtifacts
from ._s3 import S3Artifacts
from ._url import open_artifacts

__all__ = [
    "ArtifactBackend",
    "ArtifactError",
    "ArtifactsUnavailable",
    "BadArtifactsURL",
    "Blob",
    "BlobDamaged",
    "BlobPage",
    "FileArtifacts",
    "MemoryArtifacts",
    "NoSuchBlob",
    "S3Artifacts",
    "Staged",
    "open_artifacts",
]
