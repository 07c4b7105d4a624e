"""What the usual chain of AWS credentials finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def logged_in(access_key: str, secret_key: str) -> Iterator[None]:
    """These credentials, and nothing of what this machine has."""
    found = {
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with mock.patch.dict(os.environ, found):
        os.environ.pop("AWS_SESSION_TOKEN", None)
        yield
