"""What SQLite answers to who shares threads out: each question a few steps through an index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile

from attrs import frozen

from ._fair import LOOKED_AT, POINT, Asking, Candidate, Choice, Group, Parts, Places, Some
from ._records import ClaimRequest
from ._sql_fair import Source, Way


@frozen
class Index:
    """The threads, as one request sees them."""

    db: sqlite3.Connection
    request: ClaimRequest

    def choose(self, asking: Asking) -> Choice:
        """Answer each question, and give what the asker comes to."""
        try:
            question = next(asking)
            while True:
                question = asking.send(self._answer(question))
        except StopIteration as done:
            choice: Choice = done.value
            return choice

    def _answer(self, question: Some | Places | Parts) -> object:
        match question:
            case Some(ways, limit):
                return [self._rows(way, limit) for way in ways]
            case Places(way, behind, limit):
                return self._places(way, behind, limit)
            case Parts(groups, ways, limit):
                return [self._part(group, ways, limit) for group in groups]

    def _rows(self, way: Way, limit: int) -> list[Candidate]:
        machine, source = way
        statement = f"{_select(source, source.first)} AND machine = ? AND {_fits(source)} LIMIT ?"
        values = (*source.values, machine, *self._fitting(way), source.at_most(limit))
        return [Candidate(*row) for row in self.db.execute(statement, values)]

    def _places(self, way: Way, behind: str, limit: int) -> tuple[list[str], str]:
        machine, source = way
        names = chain(
            self._workspaces(way, behind),
            takewhile(lambda name: name <= behind, self._workspaces(way, "")),
        )
        found: list[str] = []
        name = behind
        for name in islice(names, LOOKED_AT * limit):
            if self._of_group(source, (machine, name), 1):
                found.append(name)
                if len(found) == limit:
                    break
        return found, name

    def _workspaces(self, way: Way, behind: str) -> Iterator[str]:
        """Workspaces in order, from behind one, each found by one step through the index."""
        machine, source = way
        statement = f"""SELECT workspace FROM standing INDEXED BY {source.index}
            WHERE {source.scope} AND machine = ? AND workspace > ? ORDER BY workspace LIMIT 1"""
        while True:
            row = self.db.execute(statement, (*source.values, machine, behind)).fetchone()
            if row is None:
                return
            behind = row[0]
            yield behind

    def _part(self, group: Group, ways: Sequence[Way], limit: int) -> list[Candidate]:
        return [
            candidate
            for machine, source in ways
            if machine == group[0]
            for candidate in self._of_group(source, group, limit)
        ]

    def _of_group(self, source: Source, group: Group, limit: int) -> list[Candidate]:
        """Of each priority the threads that could be claimed longest."""
        machine, workspace = group
        found: list[Candidate] = []
        for priority in self._priorities(source, group):
            statement = f"""{_select(source, source.index)} AND machine = ? AND workspace = ? AND priority = ?
                AND {_fits(source)} ORDER BY {source.order} LIMIT ?"""
            fitting = self._fitting((machine, source))
            values = (*source.values, machine, workspace, priority, *fitting, source.at_most(limit))
            found += [Candidate(*row) for row in self.db.execute(statement, values)]
        return found

    def _priorities(self, source: Source, group: Group) -> Iterator[int]:
        statement = f"""SELECT priority FROM standing INDEXED BY {source.index}
            WHERE {source.scope} AND machine = ? AND workspace = ? AND priority > ?
            ORDER BY priority LIMIT 1"""
        below = -(2**31)
        while (row := self.db.execute(statement, (*source.values, *group, below)).fetchone()) is not None:
            below = row[0]
            yield below

    def _fitting(self, way: Way) -> Sequence[object]:
        machine, source = way
        return self.request.machines[machine], self.request.suspect_from, *source.bounds


def _select(source: Source, index: str) -> str:
    return f"""SELECT id, machine, workspace, {source.order} - priority * {POINT},
        iif(status = 1, wake, NULL) FROM standing INDEXED BY {index} WHERE {source.scope}"""


def _fits(source: Source) -> str:
    return f"version <= ? AND crashes < ? AND {source.fits}"
