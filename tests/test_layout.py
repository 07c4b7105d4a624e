"""The tree is what the design says: four flat folders, one installed name over them, no machine's paths."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "perdure"
FOLDERS = ("artifacts", "machines", "runtime", "stores")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

PUBLIC_MODULES = {
    "artifacts/contract.py",
    "runtime/pydantic_ai.py",
    "runtime/testing.py",
    "stores/contract.py",
}
"""What users import by its module's name; all other names are exported by a folder's `__init__.py`."""

MODULE_LINES = 500
FUNCTION_LINES = 50
LONG_FUNCTIONS: dict[str, str] = {}
"""Functions that may be longer, as `folder/module.py:Class.function`, each with its reason."""


def modules() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]


def checked_in() -> list[Path]:
    """What a clean checkout holds, and what is about to be added to it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def shipped() -> set[str]:
    """Every file that an installed perdure has."""
    in_folders = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).iterdir()
        if path.name != "__pycache__"
    }
    return {f"perdure/{name}" for name in {"__init__.py", "py.typed"} | in_folders}


# --- folders and links


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_link_leads_to_its_folder(folder: str) -> None:
    assert os.readlink(PACKAGE / folder) == f"../../{folder}"


def test_the_package_holds_links_and_two_files() -> None:
    assert {path.name for path in PACKAGE.iterdir()} - {"__pycache__"} == {
        "__init__.py",
        "py.typed",
        *FOLDERS,
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_a_flat_package(folder: str) -> None:
    assert (ROOT / folder / "__init__.py").is_file()
    assert [path.name for path in (ROOT / folder).iterdir() if path.is_dir()] in ([], ["__pycache__"])


@pytest.mark.parametrize("folder", FOLDERS)
def test_tools_are_told_of_each_folder(folder: str) -> None:
    tools = PROJECT["tool"]
    assert f"perdure.{folder}" in tools["setuptools"]["packages"]
    assert f"src/perdure/{folder}" in tools["pyright"]["include"]
    assert f"src/perdure/{folder}" in tools["pyright"]["strict"]
    assert any(f"perdure.{folder}" in layer for layer in tools["importlinter"]["contracts"][0]["layers"])


def folders_of_tests() -> set[Path]:
    return {path.parent for path in (ROOT / "tests").rglob("*.py")} - {ROOT / "tests" / "typing"}


def packages_of_tests() -> list[Path]:
    return [path for path in folders_of_tests() if (path / "__init__.py").is_file()]


def test_mypy_is_told_of_each_folder_of_tests() -> None:
    loose = {path.relative_to(ROOT).as_posix() for path in folders_of_tests() - set(packages_of_tests())}
    assert loose <= set(PROJECT["tool"]["mypy"]["mypy_path"])


def test_a_module_is_private_unless_it_is_named_here() -> None:
    public = {path.relative_to(ROOT).as_posix() for path in modules() if not path.name.startswith("_")}
    assert public - PUBLIC_MODULES == set()


def test_tests_are_loose_files_with_names_of_their_own() -> None:
    """A folder that mirrors another is no package: it would bear that one's bare name. Helpers may be one."""
    helpers = {"crash", "harness", "released", "servers", "simulation", "soak"}
    assert {path.name for path in packages_of_tests()} <= helpers
    loose = folders_of_tests() - set(packages_of_tests())
    names = [path.name for folder in loose for path in folder.glob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


# --- the wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist and the wheel made from it, out of a copy, so that no earlier build lends it files."""
    copy = tmp_path_factory.mktemp("build") / "perdure"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", *FOLDERS):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return copy / "dist"


def test_the_wheel_holds_what_the_tree_holds(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        links = [
            entry.filename
            for entry in archive.infolist()
            if (entry.external_attr >> 16) & 0o170000 == 0o120000
        ]
    assert held == shipped()
    assert links == []


def test_the_sdist_holds_what_the_tree_holds(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert {f"src/{name}" for name in shipped()} <= inside


def test_the_wheel_runs_without_the_tree(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    said = run_python(LOAD_EVERYTHING, "-S", PYTHONPATH=os.pathsep.join([str(tmp_path), *site_packages()]))
    assert said.splitlines()
    assert all(Path(line.split()[1]).is_relative_to(tmp_path) for line in said.splitlines())


# --- loading

LOAD_EVERYTHING = """
import importlib, os, pkgutil, sys
import perdure
for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
    importlib.import_module(module.name)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in {"perdure", "artifacts", "machines", "runtime", "stores"}:
        print(name, os.path.realpath(module.__file__ or module.__path__[0]))
"""


def site_packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


def run_python(source: str, *options: str, **environment: str) -> str:
    command = [sys.executable, *options, "-c", source]
    env = {**os.environ, **environment}
    ran = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_no_module_loads_twice() -> None:
    loaded = [line.split() for line in run_python(LOAD_EVERYTHING).splitlines()]
    expected = {path.resolve() for path in modules()} | {PACKAGE / "__init__.py"}
    assert {Path(file) for _, file in loaded} == expected
    assert len(loaded) == len(expected)
    assert [name for name, _ in loaded if name.partition(".")[0] != "perdure"] == []


def test_no_module_was_loaded_twice_by_the_tests() -> None:
    for name in FOLDERS:
        assert not getattr(sys.modules.get(name), "__file__", None), f"say perdure.{name}, not {name}"


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def test_no_folder_is_imported_by_its_bare_name() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in checked_in()
        if path.suffix == ".py" and path.is_file()
        for line, name in imports(path)
        if name.partition(".")[0] in FOLDERS
    ]
    assert bare == []


def test_a_folder_imports_itself_relatively() -> None:
    absolute = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        for line, name in imports(path)
        if name == f"perdure.{path.parent.name}" or name.startswith(f"perdure.{path.parent.name}.")
    ]
    assert absolute == []


def test_folders_know_each_other_by_public_names() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        for line, name in imports(path)
        if name.startswith("perdure.") and "._" in name
    ]
    assert private == []


def test_the_direction_of_imports() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- sizes


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each function's dotted name within its module, and its lines with docstring and without decorators."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, (child.end_lineno or child.lineno) - child.lineno + 1
        yield from functions(child, name)


def test_modules_are_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in modules()}
    long = {name: length for name, length in lengths.items() if length > MODULE_LINES}
    assert long == {}


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT).as_posix()}:{name}": length
        for path in modules()
        for name, length in functions(ast.parse(path.read_text()))
        if length > FUNCTION_LINES
    }
    assert {name: length for name, length in long.items() if name not in LONG_FUNCTIONS} == {}
    assert LONG_FUNCTIONS.keys() <= long.keys(), "no longer long: take it from the list"


# --- nothing of one machine

OF_ONE_MACHINE = re.compile(
    rb"/(?:work|root)/[\w.]|/(?:home|Users)/\w+/|file:///\w+/simple|https?://[^\s\"'`]*/simple\b|--(?:extra-)?index-url|--trusted-host"
    rb"|index[-_]url\s*=|@ (?:file|https?)://"
)


def test_no_file_names_a_machine_or_an_index() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.decode(errors='replace').strip()[:120]}"
        for path in checked_in()
        if path.is_file() and not path.is_symlink() and path != Path(__file__)
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if OF_ONE_MACHINE.search(line)
    ]
    assert named == []


def test_the_constraints_pin_by_name_and_version_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line)] == []
    names = [re.sub("[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert all(one < other for one, other in pairwise(sorted(names)))
    asked = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    wanted = {re.sub("[-_.]+", "-", re.split(r"[\[<>=!~ ]", name)[0]).lower() for name in asked}
    assert wanted <= set(names)
