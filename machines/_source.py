"""What can be read from the code of handlers, receivers and guards, before any of it runs.

Best effort: code whose source is not there is checked when it runs.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FunctionType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs


@attrs.frozen(kw_only=True)
class EventCall:
    """``self.event(field=...)`` in a method's code."""

    event: str
    fields: tuple[str, ...]
    positional: bool


def own_calls(fn: Callable[..., Any]) -> Iterator[EventCall]:
    """Every call of an attribute of the method's first parameter."""
    tree = _parsed(fn)
    if tree is None or not (tree.args.posonlyargs + tree.args.args):
        return
    this = (tree.args.posonlyargs + tree.args.args)[0].arg
    for node in _within(tree, this):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=event), args=args, keywords=named):
                if name == this:
                    yield EventCall(
                        event=event,
                        fields=tuple(keyword.arg for keyword in named if keyword.arg is not None),
                        positional=bool(args),
                    )
            case _:
                pass


def _within(node: ast.AST, this: str) -> Iterator[ast.AST]:
    """What stands below a node, without functions and classes in which ``this`` may be another."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) or this in _parameters(child):
            continue
        yield child
        yield from _within(child, this)


def _parameters(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return []
    given = node.args
    single = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *single)]


def _parsed(fn: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    fn = inspect.unwrap(fn)
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(fn))).body
    except (OSError, TypeError, SyntaxError):
        return None
    found = body[0] if body else None
    # A file that changed since it was imported shows another function here.
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and found.name == fn.__name__:
        return found
    return None


def strings_under(klass: type[Any]) -> dict[str, str]:
    """The string literals that stand under the assignments in a class's body, by the name assigned."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(klass))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    found = body[0] if body else None
    if not isinstance(found, ast.ClassDef) or found.name != klass.__name__:
        return {}
    texts: dict[str, str] = {}
    for assigned, below in pairwise(found.body):
        match assigned, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
            case _:
                pass
    return texts


def attributes_read(fn: Callable[..., Any]) -> Iterator[str]:
    """The attributes that a plain function reads of its first argument, from its bytecode: ``lambda`` has no
    source of its own."""
    if not isinstance(fn, FunctionType) or not fn.__code__.co_argcount:
        return
    first = fn.__code__.co_varnames[0]
    loaded = False
    for instruction in dis.get_instructions(fn):
        if loaded and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield str(instruction.argval)
        loaded = instruction.opname.startswith("LOAD_FAST") and instruction.argval == first


def annotated(fn: Callable[..., Any], position: int) -> Any:
    """The type that the parameter at this position is annotated with, or None where none can be read."""
    try:
        return _hint(fn, list(inspect.signature(fn).parameters)[position])
    except (TypeError, ValueError, IndexError):
        return None


def may_give(fn: Callable[..., Any] | None, wanted: type[Any]) -> bool:
    """Whether what a function declares to return can be of the class ``wanted``; true where nothing can be
    read of it."""
    declared = None if fn is None else _hint(fn, "return")
    if declared is None:
        return True
    union = get_origin(declared) in (Union, UnionType)
    return any(fits(wanted, each) for each in (get_args(declared) if union else (declared,)))


def _hint(fn: Callable[..., Any], name: str) -> Any:
    try:
        alone = SimpleNamespace(__annotations__={name: fn.__annotations__[name]})
        return get_type_hints(alone, globalns=inspect.unwrap(fn).__globals__)[name]
    except (NameError, AttributeError, TypeError, SyntaxError, KeyError):
        return None


def takes(fn: Callable[..., Any], positional: int) -> bool:
    """Whether it can be called with this many arguments by position."""
    try:
        inspect.signature(fn).bind(*range(positional))
    except TypeError:
        return False
    return True


def fits(actual: Any, declared: Any) -> bool:
    """Whether a parameter declared so may be given a value of the class ``actual``; true where only a type
    checker can tell."""
    actual, declared = get_origin(actual) or actual, get_origin(declared) or declared
    if declared is Any or getattr(declared, "_is_protocol", False):
        return True
    if not isinstance(actual, type) or not isinstance(declared, type):
        return True
    return issubclass(actual, declared)
