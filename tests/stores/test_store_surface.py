"""What perdure.stores offers is pinned: a name that comes or goes does so on purpose."""

from __future__ import annotations

import inspect
import subprocess
import sys

import perdure.stores
from perdure.stores import MemoryStore, Nudging, SQLiteStore, Store, contract
from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores._postgres import PostgresStore

NAMES = {
    "MAX_RESTORED",
    "ROW_KINDS",
    "RestoreConflict",
    "RowKey",
    "RowKind",
    "Rows",
    "StoredRow",
    "ThreadPart",
    "bytes_of_row",
    "key_of_row",
    "kind_of_row",
    "MAX_BODY",
    "MAX_CONSUMED",
    "MAX_ID",
    "MAX_NAME",
    "MAX_OUTSIDE",
    "MAX_PRIORITY",
    "MAX_SOURCES",
    "MAX_WORKSPACE",
    "MAX_WRITE",
    "SCHEMA",
    "Address",
    "ArtifactRow",
    "Artifacts",
    "BadStoreURL",
    "Claim",
    "ClaimRequest",
    "Claimed",
    "Commit",
    "DefinitionRow",
    "Definitions",
    "Delivered",
    "Expire",
    "Expired",
    "Inbox",
    "InboxRow",
    "Items",
    "ItemsRow",
    "KeyRow",
    "KeyTaken",
    "KeyWrite",
    "Keys",
    "Log",
    "LogKind",
    "LogRow",
    "Memory",
    "MemoryCheck",
    "MemoryMoved",
    "MemoryRow",
    "MemoryStore",
    "MemoryWrite",
    "MessageRow",
    "Messages",
    "Micros",
    "Outbox",
    "OutboxRow",
    "Nudging",
    "OutcomeUnknown",
    "Page",
    "Query",
    "Release",
    "Remember",
    "SQLiteStore",
    "Share",
    "Shared",
    "Signal",
    "SignalConflict",
    "StaleClaim",
    "Standing",
    "Start",
    "Started",
    "Status",
    "Store",
    "StoreError",
    "StoreFacts",
    "StoreUnavailable",
    "StoreUnreadable",
    "ThreadEnded",
    "ThreadRow",
    "Threads",
    "TooLarge",
    "WorkerRow",
    "Workers",
    "check_name",
    "check_priority",
    "open_store",
    "store_facts",
    "system_clock",
}


def test_public_names_are_the_pinned_ones() -> None:
    assert set(perdure.stores.__all__) == NAMES
    assert len(perdure.stores.__all__) == len(NAMES)
    assert [name for name in NAMES if not hasattr(perdure.stores, name)] == []


def test_public_names_of_the_contract_are_the_pinned_ones() -> None:
    assert set(contract.__all__) == {"CHECKS", "Check", "Clock", "ContractBroken", "Kit"}


def methods_of(store: type) -> set[str]:
    """Those that do something: a store is opened and closed as any context manager is."""
    return {name for name in dir(store) if not name.startswith("_")}


def is_property(store: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(store, name), property)


def test_the_seam_has_at_most_twelve_methods_and_every_store_has_those_alone() -> None:
    seam = methods_of(Store)
    assert len(seam) <= 12
    for store, beside in (
        (DynamoDBStore, set[str]()),
        (MemoryStore, set[str]()),
        (PostgresStore, methods_of(Nudging)),
        (SQLiteStore, set[str]()),
    ):
        assert {name for name in methods_of(store) if not is_property(store, name)} == seam | beside
        for name in seam:
            assert list(inspect.signature(getattr(store, name)).parameters) == list(
                inspect.signature(getattr(Store, name)).parameters
            )


def test_the_contract_runs_without_a_test_framework() -> None:
    code = (
        "import sys, perdure.stores.contract; print({'pytest', 'hypothesis', '_pytest'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
