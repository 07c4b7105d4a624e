"""DynamoDB answers as the model does, whatever is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.beside import QUICK, Beside
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.stores import Store
from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import Clock


@pytest.mark.long
def test_dynamodb_does_what_the_model_does(dynamodb_url: str, full_sweep: bool) -> None:
    table, _, options = dynamodb_url.partition("?")

    class BesideDynamoDB(Beside):
        @staticmethod
        def make(folder: Path, clock: Clock) -> Store:
            return DynamoDBStore(f"{table}-{folder.name}?{options}", clock=clock)

    quick = settings(QUICK, max_examples=6)
    long = settings(QUICK, max_examples=100)
    run_state_machine_as_test(BesideDynamoDB, settings=long if full_sweep else quick)
