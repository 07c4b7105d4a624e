"""What DynamoDB's answers, and their absence, mean to whoever called the store."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Any

from ._dynamodb_asks import Cancelled, Reason
from ._dynamodb_place import WHERE_CREDENTIALS
from ._dynamodb_values import unpack_item
from ._errors import BadStoreURL, OutcomeUnknown, StoreError, StoreUnavailable, StoreUnreadable, TooLarge

# The driver has no types of its own.
BOTO: Any = import_module("botocore.exceptions")
AIOHTTP: Any = import_module("aiohttp")

FAILURES: tuple[type[Exception], ...] = (
    BOTO.ClientError,
    BOTO.BotoCoreError,
    import_module("botocore.parsers").ResponseParserError,
    AIOHTTP.ClientError,
    OSError,
)
"""Everything that the driver raises; a cancellation is none of it."""

NO_CREDENTIALS: tuple[type[Exception], ...] = (
    BOTO.NoCredentialsError,
    BOTO.PartialCredentialsError,
    BOTO.CredentialRetrievalError,
    BOTO.ProfileNotFound,
    BOTO.NoAuthTokenError,
    BOTO.TokenRetrievalError,
)
UNSENT: tuple[type[Exception], ...] = (BOTO.ConnectTimeoutError, BOTO.SSLError, BOTO.ProxyConnectionError)

BUSY = frozenset(
    {
        "LimitExceededException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingError",
        "ThrottlingException",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
"""Codes of an error, or of a reason for which a transaction was cancelled, that time mends."""
NOT_LET_IN = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
CONDITION = "ConditionalCheckFailed"


class Verdict(Enum):
    """What became of a call that has failed."""

    MOVED = "a condition did not hold"
    BUSY = "nothing was done: the service was too busy, or not reached"
    LOST = "what became of it is not known"
    REFUSED = "nothing was done, nor would be"


def judge(error: Exception) -> Verdict:
    if isinstance(error, BOTO.ClientError):
        return _judge_answer(_answer(error))
    if isinstance(error, UNSENT) or isinstance(_cause(error), AIOHTTP.ClientConnectorError):
        return Verdict.BUSY
    if isinstance(error, BOTO.BotoCoreError) and not isinstance(
        error, (BOTO.ConnectionError, BOTO.HTTPClientError)
    ):
        return Verdict.REFUSED
    return Verdict.LOST


def cancelled(error: Exception) -> Cancelled:
    """What a condition that did not hold is to the store: why, for each action."""
    answer = _answer(error)
    reasons = answer.get("CancellationReasons")
    if reasons is None:
        return Cancelled([_reason(answer, failed=True)])
    return Cancelled([_reason(each, failed=each.get("Code") == CONDITION) for each in reasons])


def explain(where: str, error: Exception, *, opening: bool = False) -> StoreError:
    """The error for a call of which nothing was done."""
    code = said(error)
    if isinstance(error, BOTO.NoRegionError):
        return BadStoreURL(
            f"{where} is in no region: write ?region=eu-central-1 behind it, or set AWS_REGION"
        )
    if isinstance(error, NO_CREDENTIALS):
        return _not_let_in(f"{where}: no credentials ({code}): {WHERE_CREDENTIALS}", opening)
    if code in NOT_LET_IN:
        return _not_let_in(
            f"{where} does not let these credentials in ({code}): {WHERE_CREDENTIALS}", opening
        )
    if code == "ResourceNotFoundException":
        return StoreUnreadable(f"{where}: there is no such table")
    if _is_too_large(_answer(error)):
        return TooLarge(f"{where}: the write is larger than DynamoDB takes; nothing of it was written")
    if judge(error) is Verdict.REFUSED:
        return StoreError(
            f"{where}: the call was refused ({code}); nothing was done: look {code} up in DynamoDB's "
            "documentation of errors, and in CloudTrail for what was asked"
        )
    if code in BUSY or "CancellationReasons" in _answer(error):
        return StoreUnavailable(f"{where} is too busy ({code}): try again later, or give it more capacity")
    return StoreUnavailable(f"{where} cannot be reached or does not answer ({code})")


def unknown(where: str, error: Exception) -> OutcomeUnknown:
    """The error for a write whose answer was lost."""
    return OutcomeUnknown(f"{where}: whether the write landed is not known ({said(error)})")


def said(error: Exception) -> str:
    """The service's word for what went wrong, or the driver's: it repeats nothing that was sent."""
    return str(_answer(error).get("Error", {}).get("Code", type(error).__name__))


def _judge_answer(answer: Mapping[str, Any]) -> Verdict:
    code = str(answer.get("Error", {}).get("Code", ""))
    reasons = {str(each.get("Code")) for each in answer.get("CancellationReasons", ())} - {"None"}
    if code == f"{CONDITION}Exception" or CONDITION in reasons:
        return Verdict.MOVED
    if code in BUSY or (reasons and reasons <= BUSY):
        return Verdict.BUSY
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == 429:
        return Verdict.BUSY
    # DynamoDB says of both that a write may have landed.
    return Verdict.LOST if status >= 500 else Verdict.REFUSED


def _reason(answer: Mapping[str, Any], *, failed: bool) -> Reason:
    item = answer.get("Item")
    return Reason(failed=failed, item=unpack_item(item) if item else None)


def _answer(error: Exception) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = getattr(error, "response", None) or {}
    return answer


def _cause(error: Exception) -> object:
    """What the driver wraps, where it wraps something."""
    wrapped: Mapping[str, object] = getattr(error, "kwargs", None) or {}
    return wrapped.get("error")


def _is_too_large(answer: Mapping[str, Any]) -> bool:
    texts = [answer.get("Error", {}), *answer.get("CancellationReasons", ())]
    return any("size has exceeded" in str(each.get("Message", "")).lower() for each in texts)


def _not_let_in(text: str, opening: bool) -> StoreError:
    return BadStoreURL(text) if opening else StoreUnavailable(text)
