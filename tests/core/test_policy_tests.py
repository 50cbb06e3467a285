"""Policy tests as tables: what passes, how a failure reads, and every fault of a file with its key path."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
import yaml

from icewright.core.errors import ConfigError
from icewright.core.layering import Policy, PolicyRule
from icewright.core.simulation.scenario import policy_failures, read_policy_tests
from icewright.testing import check_policy

QUIET = """
tests:
  - name: a quiet table is compacted once
    table: lake.sales.orders
    policy: [{set: {compact.min_input_files: 3}}]
    ticks:
      - commits: [{partition: "day=2026-01-01", files: 4, mb: 1}]
        expect: {compact: {verdict: not_due, reason: hot}, files: 4}
      - after_hours: 2
        expect: {compact: due, expire_snapshots: not_due}
      - run: [compact]
        expect: {compact: not_due, files: 1}
  - name: old snapshots go
    table: lake.sales.orders
    begins: 2026-03-01T12:00:00Z
    ticks:
      - commits: [{files: 1, mb: 600}, {files: 1, mb: 600}, {files: 1, mb: 600}]
      - after_hours: 24
        commits: [{files: 1, mb: 600}, {files: 1, mb: 600}, {files: 1, mb: 600}]
        expect: {expire_snapshots: not_due}
      - after_hours: 150
        expect: {expire_snapshots: due, compact: not_due}
      - run: [expire_snapshots, remove_orphans]
        expect: {expire_snapshots: not_due, remove_orphans: not_due, rewrite_deletes: not_due}
"""


def test_what_is_as_expected_passes() -> None:
    """Time, commits and runs come in this order; a test's own rules stand for the policy's."""
    check_policy(yaml.safe_load(QUIET))


def changed(**ticks: Any) -> dict[str, Any]:
    """One test with one tick."""
    commits = [{"files": 10, "mb": 1}]
    return {"tests": [{"name": "t", "table": "lake.sales.orders", "ticks": [{"commits": commits, **ticks}]}]}


@pytest.mark.parametrize(
    ("tick", "said"),
    [
        ({"expect": {"compact": "not_due"}}, "tick 1 (0 h): compact: expected not_due, found due: 10 files of 1.0 MB"),
        (
            {"expect": {"compact": {"verdict": "due", "reason": "deletes"}}},
            "expected a reason with 'deletes', found: 10",
        ),
        ({"expect": {"files": 3}}, "files: expected 3, found 10"),
        ({"run": ["expire_snapshots"]}, "expire_snapshots was to run, but it is not_due: no snapshots to expire"),
        ({"run": ["compact"], "expect": {"compact": "due"}}, "compact: expected due, found not_due: no files eligible"),
    ],
)
def test_a_failure_says_what_was_found(tick: dict[str, Any], said: str) -> None:
    """What was expected, what was found, and the reason of the verdict."""
    with pytest.raises(AssertionError) as caught:
        check_policy(changed(**tick))
    assert said in str(caught.value)
    assert str(caught.value).startswith("t: tick 1")


def test_the_policy_holds() -> None:
    """Rules of the given policy apply by their patterns, and its guardrails stay when a test has rules of its own."""
    policy = Policy((PolicyRule(("lake", "sales", "*"), {"compact.enabled": False}),))
    (test,) = read_policy_tests(changed(expect={"compact": "blocked"}))
    assert not policy_failures(test, policy)
    assert policy_failures(test)


def test_cooldowns_do_not_hide_what_is_due() -> None:
    """A verdict says what is due; when it may start is the plan's."""
    tick = {"commits": [{"files": 9, "mb": 1}], "run": ["compact"]}
    again = {"after_hours": 0.1, "commits": [{"files": 9, "mb": 1}], "expect": {"compact": "due"}}
    check_policy({"tests": [{"name": "t", "table": "a.b.c", "ticks": [tick, again]}]})


def begun(year: int, zone: tzinfo = UTC, **tick: Any) -> dict[str, Any]:
    """One test that begins on the last day of a year."""
    test = {"name": "t", "table": "lake.sales.orders", "begins": datetime(year, 12, 31, tzinfo=zone), "ticks": [tick]}
    return {"tests": [test]}


BAD = {
    "a list": ([], "a list given; write a mapping with the keys tests"),
    "no tests": ({"tests": []}, "tests: there is none; write a list of tests"),
    "tests a text": ({"tests": "x"}, "tests: text given; write a list"),
    "unknown": ({"test": [], **changed()}, "test: there is no such key; known are tests"),
    "a test that is a text": ({"tests": ["x"]}, "tests[0]: text given; write a mapping with the keys name, table"),
    "no name": ({"tests": [{"table": "a.b.c", "ticks": []}]}, "tests[0].name: missing"),
    "no table": ({"tests": [{"name": "t", "ticks": []}]}, "tests[0].table: missing"),
    "bad table": ({"tests": [{"name": "t", "table": "x", "ticks": []}]}, "tests[0].table: 'x' is not a table name"),
    "no ticks": ({"tests": [{"name": "t", "table": "a.b.c"}]}, "tests[0].ticks: nothing given; write a list"),
    "begins": (
        {"tests": [{"name": "t", "table": "a.b.c", "begins": "noon", "ticks": []}]},
        "tests[0].begins: text given; write a time such as",
    ),
    "policy": (
        {"tests": [{"name": "t", "table": "a.b.c", "ticks": [], "policy": [{"set": {"compact.x": 1}}]}]},
        "tests[0].policy[0].set.compact.x: there is no such knob",
    ),
    "hours": (changed(after_hours=-1), "tests[0].ticks[0].after_hours: -1 is not a number of hours from 0 to 8784"),
    "tick key": (changed(after=1), "tests[0].ticks[0].after: there is no such key; known are after_hours, commits"),
    "run": (changed(run=["vacuum"]), "tests[0].ticks[0].run[0]: 'vacuum' is no operation; there is: expire_rows"),
    "commit": (changed(commits=[{"files": -1}]), "tests[0].ticks[0].commits[0].files: -1 is not a whole number"),
    "mb": (changed(commits=[{"files": 1, "mb": 0}]), "tests[0].ticks[0].commits[0].mb: 0 is not a number above 0"),
    "endless mb": (changed(commits=[{"files": 1, "mb": math.inf}]), "tests[0].ticks[0].commits[0].mb: inf is not a"),
    "mb that is none": (changed(commits=[{"files": 1, "mb": math.nan}]), "tests[0].ticks[0].commits[0].mb: nan is"),
    "too many files": (changed(commits=[{"files": 10**400}]), "tests[0].ticks[0].commits[0].files: 1000"),
    "too many bytes": (
        changed(commits=[{"files": 10**9, "mb": 1}]),
        "tests[0].ticks[0].commits[0].mb: 1000000000 files of 1 MB hold more than 1000000000000000 bytes",
    ),
    "begins late": (begun(9999), "tests[0].begins: 9999-12-31T00:00:00+00:00 is out of range; write a time from 1970"),
    "begins early": (
        begun(1, timezone(timedelta(days=1, minutes=-1))),
        "tests[0].begins: 0001-12-31T00:00:00+23:59 is out of range",
    ),
    "ends late": (begun(2199, after_hours=48), "tests[0].ticks: they end after 2200-01-01; begin earlier, or let"),
    "expect": (changed(expect={"vacuum": "due"}), "tests[0].ticks[0].expect.vacuum: there is no such key; known are"),
    "verdict": (
        changed(expect={"compact": "deferred"}),
        "tests[0].ticks[0].expect.compact: 'deferred' is no verdict; there is: due, not_due, blocked, unsupported",
    ),
    "verdict key": (
        changed(expect={"compact": {"is": "due"}}),
        "tests[0].ticks[0].expect.compact.is: there is no such key; known are verdict, reason",
    ),
    "files": (changed(expect={"files": "3"}), "tests[0].ticks[0].expect.files: '3' is not a whole number"),
    "negative files": (changed(expect={"files": -1}), "tests[0].ticks[0].expect.files: -1 is not a whole number of at"),
}


@pytest.mark.parametrize(("document", "said"), BAD.values(), ids=BAD)
def test_faults_have_key_paths(document: object, said: str) -> None:
    """Where, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        read_policy_tests(document)
    assert any(fault.startswith(said) for fault in caught.value.faults), caught.value.faults


def test_all_faults_at_once() -> None:
    """One does not hide another."""
    with pytest.raises(ConfigError) as caught:
        read_policy_tests(changed(after_hours="x", run=["y"], expect={"compact": "z"}))
    assert len(caught.value.faults) == 3
