"""Every case of the catalogue is carried by a test."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
FOLDERS = TESTS, TESTS.parent / "icewright" / "testing" / "contracts"
Case = int | str

CASES: frozenset[Case] = frozenset({*range(1, 158), *(f"T{number}" for number in range(1, 24))})
#: Cases that no test can carry, with the reason.
UNTESTED: Mapping[Case, str] = {
    "T2": "PyIceberg's cost by id: no expiry goes through it",
    "T3": "PyIceberg's Avro blocks: a matter of speed, which benchmarks show",
}


def _marks(node: ast.AST) -> Iterator[Case]:
    """What `pytest.mark.cases(...)` names inside of an expression."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "cases":
            yield from (value for value in map(ast.literal_eval, call.args) if isinstance(value, int | str))


@cache
def carried() -> dict[Case, set[str]]:
    """The tests that carry each case, by the marks on modules, tests and their parameters."""
    found: dict[Case, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            if "cases(" not in (text := path.read_text(encoding="utf-8")):
                continue
            body = ast.parse(text, str(path)).body
            methods = (node for kind in body if isinstance(kind, ast.ClassDef) for node in kind.body)
            for node in (*body, *methods):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    marked, name = node.decorator_list, f"{path.name}::{node.name}"
                elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                    marked, name = [node.value], path.name
                else:
                    continue
                for case in (case for mark in marked for case in _marks(mark)):
                    found[case].add(name)
    return found


def test_each_case_is_carried() -> None:
    """At least one test shows each case."""
    assert CASES - UNTESTED.keys() - carried().keys() == set()


def test_marks_name_cases() -> None:
    """A mark names a case of the catalogue, and none that is said to be untested."""
    assert carried().keys() <= CASES - UNTESTED.keys()
