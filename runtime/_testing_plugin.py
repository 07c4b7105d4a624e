"""The pytest plug-in. It loads nothing of perdure until a test asks for something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import World


@pytest.fixture
def world() -> World:
    """A new world: its receivers stand in for the services that a machine's effects reach."""
    from .testing import World

    return World()
