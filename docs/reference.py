"""Writes docs/reference/: every public name with its signature and docstring, and every command.

    python docs/reference.py            writes the pages (make reference)

The docstrings are read, not imported. A public name stands in one group below; a test fails where one does
not, where one has no docstring, and where the pages differ from what this would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "reference"

DEFINING = {
    "Machines": "Machine State anywhere upcast Retry Fire Accept",
    "Events from outside": "Failure Cancellation Spent",
    "Data": "record present Append Merge Reducer replace Conversation Ephemeral ModelWritable runtime_owned "
    "Position Budget Cost",
    "Calls": "read effect Read Effect Call NotDone Found ABSENT UNKNOWN Absent Unknown Limit",
    "In a handler": "Step Namespace ArtifactRef",
    "Models": "Choice Refusal tool arguments ToolCall Message to_openai from_openai to_anthropic "
    "from_anthropic AnthropicMessages",
    "Diagrams": "diagram dot",
    "Errors": "DefinitionError BadCall BadUpdate BadTranscript NotStorable Unreadable",
}
RUNNING = {
    "Running": "Runtime serve Stop Schedule Client Thread Ended Resolution",
    "Looking": "Threads StepSeen CallSeen Fact Observer Observation",
    "Errors": "PerdureError Parked GuardRefused AttemptTimedOut CallMisuse MemoryConflict CannotResolve "
    "NoSuchThread UnknownMachine StartConflict SignalRefused SignalConflict RuntimeClosed StoreError "
    "ArtifactError",
}
PAGES: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "defining": ("Defining a machine", "perdure", DEFINING),
    "running": ("Running threads", "perdure", RUNNING),
    "machines": ("What a machine is made into", "perdure.machines", {}),
    "stores": ("Stores", "perdure.stores", {}),
    "artifacts": ("Artifacts", "perdure.artifacts", {}),
    "testing": ("The testing kit", "perdure.runtime.testing", {}),
    "pydantic-ai": ("pydantic-ai", "perdure.runtime.pydantic_ai", {}),
}
"""File: title, module, and groups of names; without groups, all names of it that no page before has."""

CONTRACTS = {
    "Store": ("MemoryStore", "SQLiteStore"),
    "ArtifactBackend": ("MemoryArtifacts", "FileArtifacts", "S3Artifacts"),
}
"""Whose methods mean what the contract's do, and are told of there."""


def load() -> griffe.Module:
    package = griffe.load(
        "perdure", search_paths=[ROOT / "src"], resolve_aliases=True, allow_inspection=False
    )
    assert isinstance(package, griffe.Module)
    return package


def public(package: griffe.Module, module: str) -> list[str]:
    """The names of a module's ``__all__``."""
    found = package if module == "perdure" else package[module.removeprefix("perdure.")]
    return sorted(
        str(name).strip("'") for name in found.exports or () if str(name).strip("'") != "__version__"
    )


def placed(package: griffe.Module) -> Iterator[tuple[str, str, list[str]]]:
    """Page by page and group by group: (page, group, names)."""
    seen: set[str] = set()
    for page, (title, module, groups) in PAGES.items():
        given = groups or {title: " ".join(n for n in public(package, module) if n not in seen)}
        for group, names in given.items():
            seen |= set(names.split())
            yield page, group, names.split()


def find(package: griffe.Module, module: str, name: str) -> griffe.Object:
    """What a public name is; the name ``perdure`` itself hands on what its folders have."""
    where = package if module == "perdure" else package[module.removeprefix("perdure.")]
    found = where.members[name]
    return found.final_target if isinstance(found, griffe.Alias) else found


def without_meaning(package: griffe.Module) -> list[str]:
    """Public names, and public methods and properties of public classes, that have no docstring."""
    lacking: list[str] = []
    for page, _, names in placed(package):
        for name in names:
            found = find(package, PAGES[page][1], name)
            if not text_of(found):
                lacking.append(name)
            if isinstance(found, griffe.Class):
                lacking += [f"{name}.{member.name}" for member in told(found) if not text_of(member)]
    return sorted(set(lacking))


# --- objects --------------------------------------------------------------------------------------


def fields(cls: griffe.Class) -> list[griffe.Attribute]:
    """What a record holds: annotated, public, not a property."""
    own = (m for m in cls.members.values() if isinstance(m, griffe.Attribute))
    return [m for m in own if m.annotation and not m.name.startswith("_") and "property" not in m.labels]


def methods(cls: griffe.Class) -> list[griffe.Object]:
    """Public methods and properties of the class itself."""
    return [
        member
        for name, member in cls.members.items()
        if not name.startswith("_")
        and (
            isinstance(member, griffe.Function)
            or (isinstance(member, griffe.Attribute) and "property" in member.labels)
        )
    ]


def told(cls: griffe.Class) -> list[griffe.Object]:
    """Its methods without those that its contract tells of."""
    contract = contract_of(cls)
    named = {each.name for each in methods(contract)} if contract else set[str]()
    return [member for member in methods(cls) if member.name not in named]


def contract_of(cls: griffe.Class) -> griffe.Class | None:
    name = next((contract for contract, kept_by in CONTRACTS.items() if cls.name in kept_by), None)
    folder = cls.package[cls.path.split(".")[1]] if name else None
    found = folder.members[name] if folder and name else None
    target = found.final_target if isinstance(found, griffe.Alias) else found
    return target if isinstance(target, griffe.Class) else None


def text_of(found: griffe.Object) -> str:
    """A docstring with code marks as Markdown has them; of overloads, whichever has one."""
    docs = [each.docstring for each in (found, *_overloads(found))]
    text = next((doc.value for doc in docs if doc), "")
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _overloads(found: griffe.Object) -> list[griffe.Function]:
    return list(found.overloads or ()) if isinstance(found, griffe.Function) else []


def signatures(found: griffe.Object, name: str) -> str:
    """The signature, or that of each overload, as a block."""
    each: list[griffe.Object] = [*_overloads(found)] or [found]
    shown = "\n".join(signature(one, name) for one in each)
    return f"```text\n{shown}\n```\n"


def signature(found: griffe.Object, name: str) -> str:
    if not isinstance(found, griffe.Function):
        annotation = getattr(found, "annotation", None)
        return f"{name}: {annotation}" if annotation else name
    mark = "async " if "async" in found.labels else ""
    given = [p for p in found.parameters if p.name not in ("self", "cls")]
    shown: list[str] = []
    kinds = griffe.ParameterKind
    for n, p in enumerate(given):
        if p.kind is kinds.keyword_only and not any(s.startswith("*") for s in shown):
            shown.append("*")
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(p.kind, "") if p.kind else ""
        typed = f"{stars}{p.name}" + (f": {p.annotation}" if p.annotation else "")
        default = "" if p.default is None or stars else f" = {p.default}"
        shown.append(typed + default)
        last = n + 1 == len(given) or given[n + 1].kind is not kinds.positional_only
        if p.kind is kinds.positional_only and last:
            shown.append("/")
    line = f"{mark}{name}({', '.join(shown)})"
    if len(line) > 90:
        line = f"{mark}{name}(\n    " + ",\n    ".join(shown) + ",\n)"
    return line + (f" -> {found.returns}" if found.returns else "")


def bases_of(cls: griffe.Class) -> list[str]:
    """Its bases, without classes of perdure that no user is told of."""
    known = {each for _, module, _ in PAGES.values() for each in public(cls.package, module)}
    return [
        str(base)
        for base in cls.bases
        if not str(getattr(base, "canonical_path", base)).startswith("perdure.")
        or re.split(r"\W", str(base))[0] in known
    ]


def describe(found: griffe.Object, name: str) -> str:
    if not isinstance(found, griffe.Class):
        return f"### {name}\n\n{signatures(found, name)}\n{text_of(found)}\n"
    bases = ", ".join(bases_of(found))
    parts = [f"### {name}\n\n```text\nclass {name}{f'({bases})' if bases else ''}\n```\n\n{text_of(found)}\n"]
    made = found.members.get("__init__")
    if isinstance(made, griffe.Function) and made.parameters:
        parts.append(signatures(made, name).replace(" -> None", ""))
    rows = [_field(each) for each in fields(found)]
    parts += ["\n".join(rows) + "\n"] if rows else []
    if contract := contract_of(found):
        parts.append(f"Its methods are those of [{contract.name}](#{contract.name.lower()}).\n")
    for member in told(found):
        shown = signatures(member, f"{name}.{member.name}")
        parts.append(f"#### {name}.{member.name}\n\n{shown}\n{text_of(member)}\n")
    return "\n".join(parts)


def _field(field: griffe.Attribute) -> str:
    default = "" if field.value is None else f" = {field.value}"
    meaning = " ".join(text_of(field).split())
    return f"- `{field.name}: {field.annotation}{default}`" + (f" {meaning}" if meaning else "")


# --- commands -------------------------------------------------------------------------------------


def commands() -> str:
    import typer.main

    from perdure.runtime._cli import app

    group: Any = typer.main.get_command(app)
    parts = ["# The command line\n", f"{group.help}\n"]
    for name, command in _flat(group, "perdure"):
        parts.append(f"## {name}\n\n{(command.help or '').strip()}\n")
        rows = [row for parameter in command.params if (row := _parameter(parameter))]
        parts += ["\n".join(rows) + "\n"] if rows else []
    return "\n".join(parts)


def _flat(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _flat(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _parameter(parameter: Any) -> str | None:
    if parameter.name == "help":
        return None
    value = parameter.metavar or parameter.name.upper()
    if not parameter.opts[0].startswith("-"):
        shown = value
    else:
        shown = ", ".join(parameter.opts) + ("" if parameter.is_flag else f" {value}")
    default = parameter.default
    told = isinstance(default, str | int) and not isinstance(default, bool)
    return f"- `{shown}` {getattr(parameter, 'help', None) or ''}".rstrip() + (
        f" Default: `{default}`." if told else ""
    )


# --- pages ----------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    package = load()
    written = {
        page: [f"# {title}\n", f"Names of `{module}`.\n"] for page, (title, module, _) in PAGES.items()
    }
    index = ["# Reference\n", "Generated from the docstrings by `make reference`. Every public name:\n"]
    for page, group, names in placed(package):
        module = PAGES[page][1]
        written[page].append(f"## {group}\n")
        written[page] += [describe(find(package, module, name), name) for name in names]
        linked = ", ".join(f"[{name}]({page}.md#{name.lower()})" for name in names)
        index.append(
            f"**{PAGES[page][0]}**{'' if group == PAGES[page][0] else f', {group.lower()}'}: {linked}\n"
        )
    index.append("**[The command line](command-line.md)**\n")
    made = {f"{page}.md": "\n".join(parts) for page, parts in written.items()}
    made |= {"README.md": "\n".join(index), "command-line.md": commands()}
    return {name: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n" for name, text in made.items()}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    made = pages()
    for old in OUT.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (OUT / name).write_text(text)


if __name__ == "__main__":
    main()
