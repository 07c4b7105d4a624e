"""Seeds of the simulation on PostgreSQL; more of them with `make crash STORE=postgres`."""

from __future__ import annotations

from pathlib import Path

import pytest
from _beside import reports


@pytest.mark.parametrize("first", [0, 3])
def test_every_invariant_holds_and_the_model_answers_the_same(
    first: int, postgres_server: str, tmp_path: Path
) -> None:
    for report in reports(postgres_server, tmp_path, range(first, first + 3)):
        assert not report.broken, f"{report} --store postgres"
        assert report.counts["commits"] > 0
