"""Seeds of the simulation on DynamoDB; more of them with `make crash STORE=dynamodb`."""

from __future__ import annotations

from pathlib import Path

import pytest
from _beside import reports


@pytest.mark.long  # half a minute a seed
def test_every_invariant_holds_and_the_model_answers_the_same(dynamodb_server: str, tmp_path: Path) -> None:
    for report in reports(dynamodb_server, tmp_path, range(2)):
        assert not report.broken, f"{report} --store dynamodb"
        assert report.counts["commits"] > 0
