"""PostgreSQL answers as the model does, whatever is called."""

from __future__ import annotations

from pathlib import Path

from harness.beside import QUICK, Beside
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.stores import Store
from perdure.stores._postgres import PostgresStore
from perdure.stores.contract import Clock


def test_postgres_does_what_the_model_does(postgres_server: str, full_sweep: bool) -> None:
    class BesidePostgres(Beside):
        @staticmethod
        def make(folder: Path, clock: Clock) -> Store:
            return PostgresStore(f"{postgres_server}?schema={folder.name}", clock=clock)

    run_state_machine_as_test(
        BesidePostgres, settings=settings(QUICK, max_examples=200 if full_sweep else 10)
    )
