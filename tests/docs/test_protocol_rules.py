"""The rules of docs/protocol.md are named once, and the tests that name one name one that stands there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTIONS = (ROOT / "docs/protocol.md").read_text().split("\n## ")
RULES = [[int(n) for n in re.findall(r"(?m)^\| \**R(\d+)", section)] for section in SECTIONS]


def test_each_rule_stands_once_and_in_order_within_its_section() -> None:
    every = [rule for section in RULES for rule in section]
    assert every
    assert len(every) == len(set(every))
    assert all(one < other for section in RULES for one, other in pairwise(section))


def test_a_test_that_is_named_by_a_rule_names_one_that_stands_there() -> None:
    every = {rule for section in RULES for rule in section}
    texts = [path.read_text() for path in (ROOT / "tests/runtime").glob("test_*.py")]
    named = {int(n) for text in texts for n in re.findall(r"def test_r(\d+)_", text)}
    assert named
    assert named <= every
