"""What the driver's errors mean to whoever called the store."""

from __future__ import annotations

import asyncpg

from ._errors import BadStoreURL, OutcomeUnknown, StoreError, StoreUnavailable, StoreUnreadable, TooLarge

FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Everything that the driver raises; a cancellation is none of it."""

BAD_ADDRESS = ("28", "3D", "42501")
"""Who opens the store is not let in, or there is no such database."""
ONE_WRITE = ("21", "22", "23", "54")
"""Faults of one write's values, which say nothing about others."""
AGAIN = ("40001", "40P01", "55P03")
"""Two transactions stood in each other's way, and this one gave way with nothing written."""
READ_ONLY = "25006"
"""The server does not take writes: it was a primary, or never was."""
DAMAGED = ("XX001", "XX002")


def state_of(error: BaseException) -> str:
    """The SQLSTATE with which the server refused; empty where it did not answer, or not with a refusal.

    What ends the connection is no refusal: whether the write landed before is not known.
    """
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError):
        state = str(error.sqlstate or "")
        return "" if state.startswith("57P") else state
    return ""


def is_of_one_write(error: BaseException) -> bool:
    return state_of(error).startswith(ONE_WRITE)


def explain(where: str, error: BaseException, *, opening: bool = False) -> StoreError | ValueError:
    """The error for a call of which nothing was written."""
    state = state_of(error)
    if is_of_one_write(error):
        return _of_one_write(error, state)
    if opening and (state.startswith(BAD_ADDRESS) or isinstance(error, asyncpg.ClientConfigurationError)):
        return BadStoreURL(f"{where} cannot be opened: {_said(error)}")
    if state == READ_ONLY:
        return StoreUnavailable(f"{where} takes no writes now: the server only reads, as a standby does")
    if state.startswith("53"):
        return StoreUnavailable(f"{where} has no room left ({_said(error)}): of disk, memory or connections")
    if state in DAMAGED:
        return StoreUnreadable(f"{where} is damaged: {_said(error)}")
    if state in ("26000", "42P05"):
        return StoreUnavailable(
            f"{where} lies behind a pooler that keeps no prepared statements ({_said(error)}): write "
            "?statement_cache_size=0 behind its URL"
        )
    if state == "42501":
        return StoreUnavailable(f"{where} refuses its user ({_said(error)}): grant it what the owner may do")
    if state.startswith(("42", "3F")):
        return StoreUnreadable(f"{where} has not the tables that this perdure made: {_said(error)}")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{where} did not answer in time: look after the server and the network")
    return StoreUnavailable(f"{where} cannot be reached or does not answer: {_said(error)}")


def unknown(where: str, error: BaseException) -> OutcomeUnknown:
    """The error for a write whose answer was lost."""
    return OutcomeUnknown(f"{where}: whether the write landed is not known ({_said(error)})")


def _of_one_write(error: BaseException, state: str) -> StoreError | ValueError:
    refused = error.__cause__ or error.__context__
    if isinstance(refused, UnicodeEncodeError):
        return ValueError("the write holds a text with a lone surrogate: it is not valid Unicode")
    if refused is not None:  # by the driver, which quotes the value
        return TooLarge("a value is too large for a PostgreSQL store")
    if state in ("22021", "22P05"):
        return ValueError("the write holds a text with the character NUL, which PostgreSQL does not keep")
    if state.startswith("23"):
        return StoreError(f"the write contradicts what is stored ({_said(error)}): nothing of it was written")
    return TooLarge(f"a value is too large for a PostgreSQL store: {_said(error)}")


def _said(error: BaseException) -> str:
    """One line that names no value: the details and hints of the server may quote a row."""
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
