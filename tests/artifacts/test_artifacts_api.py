"""What ``perdure.artifacts`` exports, and the URLs it opens."""

import re
from pathlib import Path

import pytest

import perdure.artifacts
from perdure.artifacts import BadArtifactsURL, FileArtifacts, MemoryArtifacts, open_artifacts

pytestmark = pytest.mark.anyio


def test_the_public_names() -> None:
    assert perdure.artifacts.__all__ == [
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
    assert all(hasattr(perdure.artifacts, name) for name in perdure.artifacts.__all__)


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:artifacts", "artifacts"),
        ("file:relative/dir", "relative/dir"),
        ("file:./a/../b", "b"),
        ("file:with%20space", "with space"),
        ("file:100%", "100%"),
        ("file:caf%C3%A9", "café"),
    ],
)
async def test_a_relative_folder_lies_below_the_one_at_the_start(
    url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_artifacts(url)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with backend:
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ["blobs", "staging"]


@pytest.mark.parametrize("prefix", ["file:", "file://"])
async def test_an_absolute_folder(prefix: str, tmp_path: Path) -> None:
    backend = open_artifacts(f"{prefix}{tmp_path}/deep/er")
    assert isinstance(backend, FileArtifacts)
    async with backend:
        assert (tmp_path / "deep" / "er" / "blobs").is_dir()


async def test_memory_is_new_with_each_call() -> None:
    for url in ("memory:", "memory://"):
        backend = open_artifacts(url)
        assert isinstance(backend, MemoryArtifacts)
        assert (await backend.list()).blobs == ()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "begins with its scheme"),
        ("artifacts", "begins with its scheme"),
        ("s3://key:hunter2@bucket", "takes no credentials"),
        ("gs://key:hunter2@bucket", "unknown artifacts URL scheme 'gs'"),
        ("FILE:artifacts", "unknown artifacts URL scheme 'FILE'"),
        ("file:", "names a folder"),
        ("file://", "names a host"),
        ("file://artifacts", "names a host"),
        ("file://user:hunter2@host/artifacts", "names a host"),
        ("file:a%00b", "names a folder"),
        ("file:artifacts?sync=off", "takes neither"),
        ("file:artifacts#hunter2", "takes neither"),
        ("memory:hunter2", "nothing behind the colon"),
    ],
)
def test_other_urls_are_refused_without_repeating_them(url: str, says: str) -> None:
    with pytest.raises(BadArtifactsURL, match=re.escape(says)) as caught:
        open_artifacts(url)
    assert "hunter2" not in str(caught.value)


async def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadArtifactsURL, match=re.escape(f"cannot open the artifacts folder '{root}'")):
            async with FileArtifacts(root):
                pass
    assert (tmp_path / "file").read_text() == "mine"
