"""Every page runs: its files load, its scripts end well, and its commands print what is shown."""

import re
from collections import Counter
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks, commands, play, same

from perdure.runtime import Parked, _cli

NOT_RUN = {
    "README.md": 3,
    "docs/tutorial.md": 1,
    "docs/how-to/check-a-deploy.md": 1,
    "docs/how-to/growth.md": 1,
    **{f"docs/coming-from/{other}.md": 1 for other in ("dbos", "langgraph", "temporal", "transitions")},
}
"""How many blocks of a page are marked as not run. A new one is a decision, and is counted here."""


NAMES = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
RUNNING = [name for name, page in NAMES.items() if any(block.runs for block in blocks(page))]


@pytest.mark.parametrize("name", RUNNING)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    for block in blocks(NAMES[name]):
        if block.runs:
            play(block, tmp_path)


def test_what_is_not_run_is_marked_and_counted() -> None:
    left = Counter({n: sum(b.mark.startswith("not run: ") for b in blocks(p)) for n, p in NAMES.items()})
    assert +left == NOT_RUN
    languages = {block.language for page in PAGES for block in blocks(page)}
    played = {"", "python", "json", "console"}
    for_others = {"text", "mermaid", "ini", "dockerfile", "yaml"}
    assert languages <= played | for_others, "use one that is played, or one that another program reads"


def test_commands_and_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of blocks that are not run."""
    shown = {
        command
        for page in PAGES
        for block in blocks(page)
        if block.language == "console"
        for command, _ in commands(block)
        if command.startswith("perdure ")
    }
    assert shown
    wrong = [command for command in sorted(shown) if not _exists(command, capsys)]
    assert wrong == []


def _exists(command: str, capsys: pytest.CaptureFixture[str]) -> bool:
    words = command.split("'")[0].split()[1:]
    depth = 2 if words[0] in ("artifacts", "memory") else 1
    with pytest.raises(SystemExit) as left:
        _cli.main([*words[:depth], "--help"])
    helped = capsys.readouterr().out
    return left.value.code == 0 and all(word in helped for word in words if word.startswith("--"))


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = NAMES[name]
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`(?!\])", "", prose))


def leads_somewhere(page: Path, link: str) -> bool:
    """An outer link is looked at for its form only; an inner one for its file and its heading."""
    if "://" in link:
        return re.fullmatch(r"https://[\w.-]+\.\w+(/[\w./#?=&%~+-]*)?", link) is not None
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    inside = target.exists() and target.is_relative_to(ROOT)
    return inside and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md" and page.exists() and page not in reached:
            reached.add(page)
            inner = (link.partition("#")[0] for link in links(page) if "://" not in link)
            waiting += [(page.parent / link).resolve() for link in inner if link]
    assert set(PAGES) - reached == set()


# --- what pages promise ---------------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_pages_tell_of_each_reason_to_park() -> None:
    page = (ROOT / "docs/how-to/parked-threads.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+?) \|", page, re.MULTILINE)
    assert f"one of: {', '.join(rows[1:])}." in (Parked.__doc__ or "")


def test_the_runner_sees_what_is_wrong(tmp_path: Path) -> None:
    """The runner itself: a wrong output, a failing script and a changed excerpt are each told."""
    for language, mark, body in (
        ("console", "", "$ echo one\ntwo\n"),
        ("console", "", "$ false\n"),
        ("python", "", "raise SystemExit(1)\n"),
        ("python", "from README.md", "this is not in it\n"),
    ):
        with pytest.raises(AssertionError):
            play(Block(language=language, mark=mark, file=None, body=body), tmp_path)
    assert same("a ... c\n", "a b\nb c")
    assert not same("a ... c", "a b d")
    assert not leads_somewhere(ROOT / "README.md", "docs/design.md#no-such-heading")
    assert not leads_somewhere(ROOT / "README.md", "docs/no-such-page.md")
