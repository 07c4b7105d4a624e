"""The reference: every public name stands in it with its meaning, and it says what the code says."""

import importlib
import sys
from collections import Counter

import pytest
from pages import ROOT

sys.path.append(str(ROOT / "docs"))
reference = importlib.import_module("reference")


@pytest.fixture(scope="module")
def package() -> object:
    return reference.load()


def test_every_public_name_stands_in_it_once_a_page(package: object) -> None:
    by_module: dict[str, list[str]] = {}
    for page, _, names in reference.placed(package):
        by_module.setdefault(reference.PAGES[page][1], []).extend(names)
    everywhere = {name for names in by_module.values() for name in names}
    for module, names in by_module.items():
        public = {name for name in importlib.import_module(module).__all__ if name != "__version__"}
        assert set(names) <= public, module
        assert public <= everywhere, module
        assert [name for name, times in Counter(names).items() if times > 1] == []
    assert set(by_module["perdure"]) == set(importlib.import_module("perdure").__all__) - {"__version__"}


def test_every_public_name_and_method_has_a_meaning(package: object) -> None:
    assert reference.without_meaning(package) == []


def test_the_pages_are_what_the_docstrings_say() -> None:
    made = reference.pages()
    kept = {page.name: page.read_text() for page in reference.OUT.glob("*.md")}
    stale = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    assert stale == [], "run `make reference`"
