"""The house keeps its plan: modules and functions stay small, imports keep to the walls."""

from __future__ import annotations

import ast
import gc
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "icewright").rglob("*.py")
    if "migrations" not in path.parts  # written once, never changed
)
CORE = [path for path in MODULES if path.parts[1] == "core"]
MODULE_LINES = 400
FUNCTION_LINES = 60


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), str(module))


@cache
def _nodes(module: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(module)))


@cache
def _lines(module: Path) -> list[str]:
    return [line.strip() for line in (ROOT / module).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> Iterator[None]:
    """Parse all modules without the garbage collector, which would look through a million nodes again and again."""
    gc.disable()
    for module in MODULES:
        _nodes(module)
    gc.enable()
    yield
    _nodes.cache_clear()
    _tree.cache_clear()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_modules_are_small() -> None:
    """A module does one job, and one job needs no more lines."""
    lines = {module: len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert not [f"{module}: {many} lines" for module, many in lines.items() if many > MODULE_LINES]


def test_functions_are_short() -> None:
    """A function fits on a screen, its docstring included."""
    too_long = [
        f"{module}:{node.lineno} {node.name}: {lines} lines"
        for module in MODULES
        for node in _nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert not too_long


def _retired_names() -> frozenset[str]:
    """Return the names in code type in the first column of the glossary's last table."""
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    table = text.partition("## Words that were replaced")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return frozenset(name for cell in rows for name in re.findall(r"`(\w+)`", cell))


def test_names_are_words_of_the_field() -> None:
    """No module uses a name that the glossary lists as replaced."""
    retired = _retired_names()
    assert retired
    assert not [
        f"{module}: {name}"
        for module in MODULES
        for node in _nodes(module)
        for name in (getattr(node, "name", None), getattr(node, "id", None), getattr(node, "attr", None))
        if name in retired
    ]


def test_a_class_name_stands_for_one_thing() -> None:
    """No two modules have a public class of one name; the API's models are named like what they show."""
    modules: dict[str, list[str]] = {}
    for module in MODULES:
        if module.parts[1:4] == ("app", "web", "api"):
            continue
        for node in _tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(module))
    assert not {name: places for name, places in modules.items() if len(places) > 1}


def test_commands_of_messages_quote_names() -> None:
    """A command that a message tells people to copy names a table as a word that no shell expands."""
    unquoted = re.compile(r"`icewright [a-z-]+ [^`{]*\{[\w.]*\bref\}")
    assert not [path for path in MODULES if unquoted.search((ROOT / path).read_text(encoding="utf-8"))]


def test_public_docstrings_stand_alone() -> None:
    """The first sentence of a public docstring has five words at least."""
    short = [
        f"{module}:{node.lineno} {node.name}: {text}"
        for module in MODULES
        for node in _nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if (text := (ast.get_docstring(node) or "").split("\n\n")[0]) and len(text.split()) < 5
    ]
    assert not short


def test_structs_are_decoded_by_decoders() -> None:
    """What a struct of msgspec takes is worked out when its module is imported: threads that do it together crash."""
    told = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in _nodes(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.convert")
        for given in node.keywords
        if given.arg == "type"
        and not ast.unparse(given.value).startswith(("dict[str, msgspec.Raw]", "list[msgspec.Raw]"))
    ]
    assert not told


def test_core_needs_the_standard_library_only() -> None:
    """The core imports itself and the standard library; which parts of that, import-linter says."""
    imported = {(module, name) for module in CORE for node in _nodes(module) for name in _imported(node)}
    foreign = {
        f"{module}: {name}"
        for module, name in imported
        if name.partition(".")[0] not in sys.stdlib_module_names and not f"{name}.".startswith("icewright.core.")
    }
    assert not foreign


def test_accepted_mutants_are_of_the_code() -> None:
    """Each names a function and lines of it that stand there: the reason is about no earlier code."""
    lines = {
        f"{'.'.join(module.with_suffix('').parts)}.{node.name}": (module, node.lineno - 1, node.end_lineno)
        for module in MODULES
        for node in _nodes(module)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    for entry in tomllib.loads((ROOT / "tests/mutants/accepted.toml").read_text(encoding="utf-8"))["accepted"]:
        module, start, end = lines[re.sub(r"\.(_?[A-Z]\w*)\.\w+$", r".\1", entry["function"])]  # or its class
        assert entry["was"] in "\n".join(_lines(module)[start:end]), entry["function"]
