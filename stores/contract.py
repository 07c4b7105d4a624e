"""The contract of a store, as checks that any store can be put through.

Each check takes a ``Kit``: a store with data of its own, empty at first, a way to open handles on it, and
the clock that it reads. Run all of ``CHECKS``, each with a new kit, so that one broken promise is one
failing test; with pytest and anyio's plugin::

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    async def test_contract(check, tmp_path):
        clock = Clock()
        await check.run(Kit(open=lambda: MyStore(tmp_path / "data", clock=clock), clock=clock))

A broken promise raises ``ContractBroken``, which says what the contract wants and what the store gave.
"""

from __future__ import annotations

from ._contract_atomic import ATOMIC
from ._contract_claim import CLAIM
from ._contract_commit import COMMIT
from ._contract_fair import FAIR
from ._contract_inbox import INBOX
from ._contract_kit import Check, Clock, ContractBroken, Kit
from ._contract_outside import OUTSIDE
from ._contract_page import PAGE
from ._contract_restore import RESTORE
from ._contract_upkeep import UPKEEP
from ._contract_values import VALUES
from ._contract_workers import WORKERS

__all__ = ["CHECKS", "Check", "Clock", "ContractBroken", "Kit"]

CHECKS: tuple[Check, ...] = (
    *ATOMIC,
    *COMMIT,
    *INBOX,
    *CLAIM,
    *FAIR,
    *WORKERS,
    *OUTSIDE,
    *UPKEEP,
    *PAGE,
    *RESTORE,
    *VALUES,
)
"""Every promise of ``Store``."""
