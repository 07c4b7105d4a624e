"""What the definition language raises. Each message names the place and the next thing to do."""

from __future__ import annotations


class DefinitionError(Exception):
    """A machine, record or call is declared wrongly; raised while the class is made, before anything runs."""


class NotStorable(Exception):
    """A value cannot be stored, or would not come back equal and of the same type; nothing was written.

    The message reads ``where.path: reason``.
    """


class Unreadable(Exception):
    """Stored bytes do not fit the declared type; they are left as they are.

    The message reads ``where.path: reason``.
    """


class BadUpdate(Exception):
    """An update cannot be merged into a machine's data; the data is unchanged.

    It names no field, or a field that the runtime owns or derives, or its value does not suit the field's
    merge rule, or two lanes write one field that has none.
    """
