"""What every test gets: the asyncio backend, and a check that library code never blocks the event loop."""

from collections.abc import Iterator

import pytest
from loop_check import Blocked


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def blocked() -> Iterator[Blocked]:
    with Blocked() as blocked:
        yield blocked


@pytest.fixture(autouse=True)
def library_leaves_the_loop_free(blocked: Blocked) -> Iterator[None]:
    """Fails a test in which code of perdure blocked the event loop, even where something caught the error."""
    blocked.found.clear()
    yield
    assert not blocked.found, "\n".join(blocked.found)
