"""Processes killed on DynamoDB: nothing is lost and nothing done twice there either.

A sample; all of it with `make crash STORE=dynamodb`.
"""

from __future__ import annotations

import pytest
from crash.running import sweep


@pytest.mark.long
def test_distinct_points_of_the_example(dynamodb_server: str) -> None:
    report = sweep(dynamodb_server, "summary", "distinct", "--every", "6")
    assert report["faults"] == []
    assert report["kills"] >= report["runs"] // 2
