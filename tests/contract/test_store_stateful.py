"""Each store answers as the model does, whatever is called, and a faulty one is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.beside import QUICK, Beside
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_store_mutants import (
    CountsNoCrash,
    DropsDedupe,
    ForgetsWhatCameMeanwhile,
    ForgetsWhatLanded,
    IgnoresTheEpoch,
    ListsTheInboxById,
    RepeatsARow,
    loses,
    tears,
)
from test_store_mutants_shared import (
    DropsSignalsForWhoIsThere,
    IgnoresAtOnce,
    IgnoresWhatIsLate,
    OverwritesDefinitions,
)

from perdure.stores import MemoryStore, SQLiteStore, Store
from perdure.stores.contract import Clock


class BesideSQLite(Beside):
    @staticmethod
    def make(folder: Path, clock: Clock) -> Store:
        return SQLiteStore(folder / "perdure.db", clock=clock)


def beside(mutant: Callable[[Clock], MemoryStore]) -> type[Beside]:
    class BesideMutant(Beside):
        @staticmethod
        def make(folder: Path, clock: Clock) -> Store:
            return mutant(clock)

    return BesideMutant


def test_sqlite_does_what_the_model_does() -> None:
    run_state_machine_as_test(BesideSQLite, settings=QUICK)


def test_the_model_does_what_the_model_does() -> None:
    run_state_machine_as_test(beside(MemoryStore), settings=QUICK)


@pytest.mark.parametrize(
    "mutant",
    [
        IgnoresTheEpoch,
        tears("messages"),
        loses("outbox"),
        DropsDedupe,
        RepeatsARow,
        ForgetsWhatLanded,
        ListsTheInboxById,
        ForgetsWhatCameMeanwhile,
        CountsNoCrash,
        IgnoresAtOnce,
        IgnoresWhatIsLate,
        OverwritesDefinitions,
        DropsSignalsForWhoIsThere,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_a_faulty_store_is_told_from_the_model(mutant: Callable[[Clock], MemoryStore]) -> None:
    find = settings(QUICK, max_examples=400, phases=[Phase.generate], derandomize=True, print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(beside(mutant), settings=find)
