"""Every case of the catalogue that concerns the metadata operations is carried by a test."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
Case = int | str

#: Cases of expiry, orphan removal, manifest rewriting, of reading metadata, of their commits and of their control.
CONCERNED: frozenset[Case] = frozenset(
    {
        *range(1, 20),  # snapshot expiry and references
        *(29, 34),  # delete files and sequence numbers, as far as a manifest rewrite may spoil them
        *(38, 42, 43, 47, 48, 49),  # format versions, specs, foreign writers, what manifests say of files
        *range(51, 79),  # statistics, metadata log, orphans and their paths, commits
        *(80, 81, 82, 84, 86, 88, 89, 90, 93),  # jobs, and what holds for all operations
        *range(95, 113),  # other people's tables, catalogs and clocks
        *(129, 130, 131, 134, 136),  # decisions that are worth their cost
        151,  # what a table's writer may set
        *("T1", "T5", "T6", "T8", "T10", "T11", "T13", "T14", "T17", "T19", "T20", "T21", "T22", "T23"),
    }
)
#: Cases that no test can carry yet, with the reason; whoever builds what is missing takes the line out.
MISSING: Mapping[Case, str] = {}
#: Cases of the catalogue that are none of these operations', with whose they are.
OTHERS: Mapping[Case, str] = {
    **dict.fromkeys((*range(20, 29), *range(30, 34)), "compaction and delete files: tests of Spark's rewriting"),
    35: "compaction of deletion vectors",
    36: "deletion vectors, format v3",
    37: "deletion vectors, upgrade to v3",
    39: "row ids after an upgrade to v3",
    40: "deletion vectors in an engine that lacks them",
    41: "compaction after a change of the spec",
    44: "compaction after a column was dropped and added again",
    45: "compaction after a type was widened",
    46: "compaction of columns with an initial default",
    50: "compaction of nested and odd types",
    79: "partial progress of a compaction",
    83: "compaction of a branch",
    85: "detection after own commits",
    87: "precedence of policies",
    91: "fairness of the planner",
    92: "proposals that collapse",
    94: "vacuum of a whole catalog",
    "T2": "PyIceberg's cost by id: no expiry goes through it",
    "T3": "PyIceberg's Avro blocks: a benchmark's",
    "T4": "memory of a large metadata file: a benchmark's",
    "T7": "verdicts without evidence: the planner's",
    "T9": "claims and priorities: the planner's",
    "T12": "identifiers and filters in SQL: the Spark engine's",
    "T15": "commits whose reply was lost: 77",
    "T16": "giving way to writers: compaction's",
    "T18": "refusal by configuration: the catalogs'",
}


def _marks(node: ast.AST) -> Iterator[Case]:
    """What `pytest.mark.cases(...)` names inside of an expression."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.cases":
            yield from (value for value in map(ast.literal_eval, call.args) if isinstance(value, int | str))


@cache
def carried() -> dict[Case, set[str]]:
    """The tests that carry each case, by the marks on the tests and on their parameters."""
    found: dict[Case, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for case in (c for decorator in node.decorator_list for c in _marks(decorator)):
                    found[case].add(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.mark.parametrize("case", sorted(CONCERNED - MISSING.keys(), key=str))
def test_the_case_is_carried(case: Case) -> None:
    """At least one test shows the case."""
    assert carried().get(case), f"no test is marked with case {case}"


def test_every_case_is_placed() -> None:
    """A case is concerned or another's, never both; a mark names a case that there is; what is missing has no test."""
    every = {*range(1, 113), *(129, 130, 131, 134, 136), 151, *(f"T{number}" for number in range(1, 24))}
    assert every == CONCERNED | OTHERS.keys()
    assert not CONCERNED & OTHERS.keys()
    assert MISSING.keys() <= CONCERNED
    assert not carried().keys() - every - set(range(113, 158))  # of parts whose other cases are still to come
    assert not carried().keys() & MISSING.keys(), "take the line out of MISSING"
