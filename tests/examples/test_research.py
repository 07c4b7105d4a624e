"""``examples/research.py``: what it quotes stands in the artifact that it cites."""

import re
from pathlib import Path

import pytest

from examples.research import DOCS, Deps, Research, Work
from perdure import Runtime, present
from perdure.stores import Artifacts, MemoryStore

pytestmark = pytest.mark.anyio


def runtime_over(docs: Path, store: MemoryStore) -> Runtime[Deps]:
    return Runtime(machines=[Research], deps=Deps(docs=docs), store=store, artifacts="memory:")


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    texts = {
        "keys.md": "# Keys\n\nA key names the action and never the process that issues it, nor the attempt.",
        "leases.md": "# Leases\n\nA lease is renewed by the worker's heartbeat, and lapses without it.",
        "deep/effects.md": "An effect's key is sent along, so that the receiver can tell two attempts apart.",
        "notes.md": "Nothing about any of it.\n\n```\nWhich process issues the key of an attempt?\n```\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


async def test_each_quotation_stands_in_the_artifact_that_it_cites(pages: Path) -> None:
    store = MemoryStore()
    async with runtime_over(pages, store) as runtime:
        work = Work(question="Which attempt or process does a key name?")
        thread = await runtime.start(Research, work, thread_id="t")
        ended = await thread.result()
        ref = present(ended.data.report)
        report = (await runtime.artifacts.get(ref)).decode()
        sources = {each.source.id: each.source for each in ended.data.quotes}
        texts = {key: (await runtime.artifacts.get(source)).decode() for key, source in sources.items()}
    cited = re.findall(r"^> (.*) \[(\d+)\]$", report, flags=re.MULTILINE)
    named = dict(re.findall(r"^\[(\d+)\] \S+, artifact (\S+),", report, flags=re.MULTILINE))
    assert ended.state == "answered"
    assert [passage[:12] for passage, _ in cited] == ["A key names ", "An effect's "][: len(cited)]
    assert all(passage in texts[named[number]] for passage, number in cited)
    async with store:
        [row] = (await store.page(Artifacts(workspace="default", id=ref.id))).rows
    assert set(sources) <= set(row.derived_from)


async def test_what_no_page_answers_ends_unanswered(pages: Path) -> None:
    async with runtime_over(pages, MemoryStore()) as runtime:
        thread = await runtime.start(Research, Work(question="Whose umbrella?"), thread_id="t")
        ended = await thread.result()
    assert (ended.state, ended.data.report) == ("unanswered", None)


async def test_the_projects_own_docs_answer_about_themselves() -> None:
    async with runtime_over(DOCS, MemoryStore()) as runtime:
        work = Work(question="When is a thread parked as diverged?")
        thread = await runtime.start(Research, work, thread_id="t")
        ended = await thread.result()
    assert ended.state == "answered"
    assert any("diverged" in quote.passage for quote in ended.data.quotes)
