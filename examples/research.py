"""Research a question in the project's own docs: plan, read in three branches, write a report that cites.

    perdure run examples.research:runtime Research --data '{"question": "When is a thread parked?"}'

Every page that the report quotes is kept as an artifact, as it was when it was read. The report is one too,
derived from them, and each quotation names the one that it stands in.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import attrs
from anyio import to_thread

from perdure import Append, ArtifactRef, Call, Fire, Machine, Runtime, State, Step, read, record

DOCS = Path(__file__).parents[1] / "docs"
PAGES = 6
"""At most so many pages are read for one question."""
QUOTES = 2
"""At most so many passages are quoted from one page."""
ENOUGH = 0.5
"""A passage answers when it has at least this share of the question's words."""


@attrs.frozen(kw_only=True)
class Deps:
    """What the calls need, and the runtime is given."""

    docs: Path


@record
class Quote:
    """A passage that answers, and the artifact that it stands in."""

    page: str
    passage: str
    score: float
    source: ArtifactRef


@record
class Work:
    """The machine's data."""

    question: str
    plan: Sequence[str] = ()
    """The pages to read, the likeliest first."""
    quotes: Annotated[Sequence[Quote], Append()] = ()
    report: ArtifactRef | None = None

    @property
    def answerable(self) -> bool:
        """At least one page has a passage that answers."""
        return bool(self.quotes)


@read
async def choose_pages(call: Call[Deps], question: str) -> Sequence[str]:
    """The pages in which the question's rarer words stand most often."""
    return await to_thread.run_sync(_likeliest, call.deps.docs, question)


@read
async def read_page(call: Call[Deps], page: str) -> str:
    """One page's text."""
    return await to_thread.run_sync(lambda: (call.deps.docs / page).read_text(encoding="utf-8"))


class Research(Machine[Work, Deps], version=1, calls=[choose_pages, read_page]):
    """Answer a question from a folder of pages, with citations to what was read."""

    planning = State(initial=True)
    reading = State()
    writing = State()
    answered = State(final=True)
    unanswered = State(final=True)

    planned = planning.to(reading)
    looked = reading.to(writing, when=Work.answerable) | reading.to(unanswered)
    written = writing.to(answered)

    @planning.handler
    async def plan(self, data: Work, step: Step[Deps]) -> Fire:
        return self.planned(plan=await step.call(choose_pages, data.question))

    @reading.handler
    async def read_first(self, data: Work, step: Step[Deps]) -> Fire:
        return self.looked(quotes=await self._quotes(data, step, 0))

    @reading.handler
    async def read_second(self, data: Work, step: Step[Deps]) -> Fire:
        return self.looked(quotes=await self._quotes(data, step, 1))

    @reading.handler
    async def read_third(self, data: Work, step: Step[Deps]) -> Fire:
        return self.looked(quotes=await self._quotes(data, step, 2))

    async def _quotes(self, data: Work, step: Step[Deps], branch: int) -> Sequence[Quote]:
        """What a branch finds in its share of the plan: every third page."""
        quotes: list[Quote] = []
        for page in data.plan[branch::3]:
            text = await step.call(read_page, page)
            best = _best_passages(text, data.question)
            if best:
                source = await step.artifacts.put(text.encode(), media_type="text/markdown")
                quotes += [Quote(page=page, passage=p, score=s, source=source) for s, p in best]
        return quotes

    @writing.handler
    async def write(self, data: Work, step: Step[Deps]) -> Fire:
        quotes = sorted(data.quotes, key=lambda quote: (-quote.score, quote.page))
        sources = {quote.source.id: quote.source for quote in quotes}
        report = await step.artifacts.put(
            _report(data.question, quotes).encode(),
            media_type="text/markdown",
            derived_from=list(sources.values()),
        )
        return self.written(report=report)


def _report(question: str, quotes: Sequence[Quote]) -> str:
    numbers: dict[str, int] = {}
    for quote in quotes:
        numbers.setdefault(quote.source.id, len(numbers) + 1)
    pages = {quote.source.id: quote for quote in quotes}
    passages = [f"> {quote.passage} [{numbers[quote.source.id]}]" for quote in quotes]
    sources = [
        f"[{number}] {pages[source].page}, artifact {source}, sha256 {pages[source].source.sha256}"
        for source, number in numbers.items()
    ]
    return "\n\n".join([f"# {question}", *passages, "## Sources", *sources]) + "\n"


# --- what answers ---------------------------------------------------------------------------------


def _likeliest(docs: Path, question: str) -> list[str]:
    texts = {
        page.relative_to(docs).as_posix(): _words(page.read_text(encoding="utf-8"))
        for page in sorted(docs.rglob("*.md"))
    }
    weights = _weights(_words(question), texts)
    scores = {
        page: sum(weight * math.log1p(words[word]) for word, weight in weights.items())
        for page, words in texts.items()
    }
    found = [page for page in scores if scores[page] > 0]
    return sorted(found, key=lambda page: (-scores[page], page))[:PAGES]


def _best_passages(text: str, question: str) -> list[tuple[float, str]]:
    """The paragraphs that share most of the question's words, with the share."""
    asked = set(_words(question))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    passages = [" ".join(passage.split()) for passage in re.split(r"\n\s*\n|\n(?=- |\d+\. )", prose)]
    told = [re.sub(r"^(- |\d+\. )", "", passage) for passage in passages if _prose(passage)]
    scored = [(round(len(asked & set(_words(each))) / len(asked), 3), each) for each in told]
    good = [(score, each) for score, each in scored if score >= ENOUGH]
    return sorted(good, key=lambda found: (-found[0], len(found[1]), found[1]))[:QUOTES]


def _prose(passage: str) -> bool:
    return not passage.startswith(("#", "|", ">")) and len(passage) > 40


def _words(text: str) -> Counter[str]:
    """Words of four letters and more, without their endings."""
    return Counter(word.rstrip("sed") for word in re.findall(r"[a-z]{4,}", text.lower()))


def _weights(asked: Counter[str], texts: Mapping[str, Counter[str]]) -> dict[str, float]:
    """The rarer a word is among the pages, the more it says; one that stands in each says nothing."""
    return {
        word: math.log((1 + len(texts)) / (1 + sum(word in words for words in texts.values())))
        for word in asked
    }


runtime = Runtime(
    machines=[Research],
    deps=Deps(docs=DOCS),
    store="sqlite:///perdure.db",
    artifacts="file:perdure-artifacts",
)
