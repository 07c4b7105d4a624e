"""Items, keys and conditions as DynamoDB's interface writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from attrs import define, field

from ._dynamodb_asks import ABSENT, PRESENT, Action, Check, Delete, Item, Key, Put, Span, Update, Wanted
from ._dynamodb_keys import INDEXES

Wire = dict[str, Any]
PK, SK = "PK", "SK"


def pack_value(value: object) -> Wire:
    match value:
        case str():
            _check_text(value)
            return {"S": value}
        case int() if not isinstance(value, bool):
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case list():
            return {"L": [pack_value(each) for each in cast("list[object]", value)]}
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in an item")


def unpack_value(wire: Mapping[str, Any]) -> Any:
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            return int(value)
        case "L":
            return [unpack_value(each) for each in value]
        case _:
            return value


def pack_key(key: Key) -> Wire:
    return {PK: pack_value(key.pk), SK: pack_value(key.sk)}


def pack_item(key: Key, item: Item) -> Wire:
    there = {name: pack_value(value) for name, value in item.items() if value is not None}
    return {**there, **pack_key(key)}


def unpack_item(wire: Mapping[str, Any]) -> Item:
    return {name: unpack_value(value) for name, value in wire.items()}


def key_of(wire: Mapping[str, Any]) -> Key:
    return Key(wire[PK]["S"], wire[SK]["S"])


def asked(action: Action, table: str) -> tuple[str, Wire]:
    """An action's name, and what is asked with it: in a transaction and by itself alike."""
    words = Words()
    wire: Wire = {"TableName": table}
    match action:
        case Put():
            wire["Item"] = pack_item(action.key, action.item)
        case Update():
            wire["Key"] = pack_key(action.key)
            wire["UpdateExpression"] = words.changes(action.item)
        case Delete() | Check():
            wire["Key"] = pack_key(action.key)
    if action.wanted:
        wire["ConditionExpression"] = words.condition(action.wanted)
        wire["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    name = "ConditionCheck" if isinstance(action, Check) else type(action).__name__
    return name, {**wire, **words.explained()}


def asked_span(span: Span) -> Wire:
    words = Words()
    pk, sk = (PK, SK) if span.index is None else (INDEXES[span.index].pk, INDEXES[span.index].sk)
    condition = f"{words.name(pk)} = {words.value(span.pk)}"
    sort = words.name(sk) if span.first is not None or span.last is not None else ""
    if span.first is not None and span.last is not None:
        condition += f" AND {sort} BETWEEN {words.value(span.first)} AND {words.value(span.last)}"
    elif span.first is not None:
        condition += f" AND {sort} >= {words.value(span.first)}"
    elif span.last is not None:
        condition += f" AND {sort} <= {words.value(span.last)}"
    where: Wire = {"ConsistentRead": True} if span.index is None else {"IndexName": span.index}
    return {
        "KeyConditionExpression": condition,
        "ScanIndexForward": not span.descending,
        **where,
        **words.explained(),
    }


@define
class Words:
    """Names and values stand outside of an expression, which has a word for each: so none is reserved."""

    names: list[str] = field(factory=list[str])
    values: list[Wire] = field(factory=list[Wire])

    def name(self, name: str) -> str:
        if name not in self.names:
            self.names.append(name)
        return f"#{self.names.index(name)}"

    def value(self, value: object) -> str:
        self.values.append(pack_value(value))
        return f":{len(self.values) - 1}"

    def condition(self, wanted: Wanted) -> str:
        return " AND ".join(self._wants(self.name(name), value) for name, value in wanted.items())

    def _wants(self, name: str, value: object) -> str:
        if value is ABSENT:
            return f"attribute_not_exists({name})"
        if value is PRESENT:
            return f"attribute_exists({name})"
        return f"{name} = {self.value(value)}"

    def changes(self, item: Item) -> str:
        sets = [f"{self.name(name)} = {self.value(it)}" for name, it in item.items() if it is not None]
        removes = [self.name(name) for name, it in item.items() if it is None]
        return " ".join(_clause("SET", sets) + _clause("REMOVE", removes))

    def explained(self) -> Wire:
        wire: Wire = {}
        if self.names:
            wire["ExpressionAttributeNames"] = {f"#{n}": name for n, name in enumerate(self.names)}
        if self.values:
            wire["ExpressionAttributeValues"] = {f":{n}": value for n, value in enumerate(self.values)}
        return wire


def _clause(word: str, parts: Sequence[str]) -> list[str]:
    return [f"{word} {', '.join(parts)}"] if parts else []


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the write holds a text with a lone surrogate: it is not valid Unicode") from None
