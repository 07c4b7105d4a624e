"""What a handler returns: an event and its updates, each field updated by one hand."""

import pytest

from perdure.machines import BadUpdate, Fire


def test_also_adds_updates_and_leaves_the_first_fire_as_it_was() -> None:
    fire = Fire(event="settle", updates={"topic": "refund"})
    assert fire.also(tokens=12, talk=[]) == Fire(
        event="settle", updates={"topic": "refund", "tokens": 12, "talk": []}
    )
    assert fire.updates == {"topic": "refund"}


def test_also_refuses_a_field_that_has_an_update() -> None:
    with pytest.raises(BadUpdate, match="settle: 'topic' is updated already"):
        Fire(event="settle", updates={"topic": "refund"}).also(topic="parcel")
