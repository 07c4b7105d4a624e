"""What every test gets: the asyncio backend, and a check that library code never blocks the event loop."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from loop_check import Blocked
from servers.rooms import FILES, server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-sweep", action="store_true", help="every point and seed, as make crash does")
    parser.addoption(
        "--store", default=FILES, help="the store of the sweeps: postgres, or the URL of a server"
    )


def pytest_configure(config: pytest.Config) -> None:
    """No test measures time, so hypothesis does not either. `make test` takes the same examples each time."""
    full = bool(config.getoption("--full-sweep"))
    calm = [HealthCheck.too_slow]
    settings.register_profile(
        "perdure", deadline=None, derandomize=not full, print_blob=True, suppress_health_check=calm
    )
    settings.load_profile("perdure")


@pytest.fixture(scope="session")
def full_sweep(request: pytest.FixtureRequest) -> bool:
    """Whether a sweep takes every point and seed, or the quick sample of `make test`."""
    return bool(request.config.getoption("--full-sweep"))


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where each run of a sweep gets a room of its own, as ``servers.rooms.room`` takes it."""
    with server(str(request.config.getoption("--store"))) as found:
        yield found


@pytest.fixture(scope="session")
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
