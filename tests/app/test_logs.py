"""Logs: one form for ours and other libraries', with what an event is about, and without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from icewright.app import logs
from icewright.app.redaction import HIDDEN, Redaction
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from tests.examples import examples

SECRET = 'hush/4711 "quoted"\\'
CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: CAPTURE) -> list[dict[str, Any]]:
    """What was logged, each line a JSON object; nothing on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_a_log_that_cannot_be_written_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, and when nobody reads it any more, lines are dropped."""
    logs.configure()
    with Path("/dev/full").open("w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        for _ in range(3000):
            logs.listener()("started", {"kind": "service"})
        with suppress(OSError):  # of what it still has to write
            full.close()
        logs.listener()("ready", {})


def test_an_event_is_a_line(capsys: CAPTURE) -> None:
    """Time in UTC, level, what happened, and what it is about; values and lists as they are."""
    logs.configure()
    job = {"job_id": "j1", "table": "lake.a.`grün ☃`", "operation": Operation.COMPACT, "reason": None}
    logs.listener()("operation_started", job)
    logs.listener()("detected", {"tables": 3, "catalogs": ("a", "b"), "line": "one\ntwo"})
    first, second = lines(capsys)
    assert list(first) == ["ts", "level", "event", "job_id", "table", "operation"]
    assert first["ts"].endswith("Z")
    assert {k: v for k, v in first.items() if k != "ts"} == {
        "level": "info",
        "event": "operation_started",
        "job_id": "j1",
        "table": "lake.a.`grün ☃`",
        "operation": "compact",
    }
    assert (second["tables"], second["catalogs"], second["line"]) == (3, ["a", "b"], "one\ntwo")


@pytest.mark.parametrize(
    ("kind", "details", "level"),
    [
        ("job_finished", {"state": JobState.SUCCEEDED}, "info"),
        ("job_finished", {"state": JobState.PARTIAL}, "warning"),
        ("job_finished", {"state": JobState.FAILED}, "warning"),
        ("catalog_failed", {"catalog": "lake"}, "error"),
        ("reports_failed", {"catalog": "lake"}, "error"),
        ("paused", {"table": "lake.a.b", "state": JobState.FAILED}, "warning"),
        ("loop_failed", {"loop": "plan"}, "error"),
        ("alert_raised", {"rule": "stale"}, "warning"),
        ("something_new", {}, "info"),
    ],
)
def test_levels_of_events(capsys: CAPTURE, kind: str, details: dict[str, Any], level: str) -> None:
    """What went wrong is worse than what went well."""
    logs.configure()
    logs.listener()(kind, details)
    (said,) = lines(capsys)
    assert said["level"] == level


def test_the_level(capsys: CAPTURE) -> None:
    """What is below it is not logged."""
    logs.configure(level="warning")
    tell = logs.listener()
    tell("detected", {})
    tell("catalog_failed", {})
    assert [line["event"] for line in lines(capsys)] == ["catalog_failed"]


def test_for_people(capsys: CAPTURE) -> None:
    """On a terminal a line reads from left to right; what holds blanks is quoted."""
    logs.configure(style="text")
    logs.listener()("job_finished", {"job_id": "j1", "state": JobState.FAILED, "summary": "compact: no space"})
    said = capsys.readouterr().err
    assert said.endswith(' warning job_finished job_id=j1 state=failed summary="compact: no space"\n')


def test_a_terminal(capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch) -> None:
    """There lines are for people by themselves, unless JSON is asked for."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for style, is_json in (("auto", False), ("json", True)):
        logs.configure(style=style)
        logs.listener()("detected", {"tables": 1})
        assert capsys.readouterr().err.startswith("{") == is_json


@pytest.mark.cases(155)
@pytest.mark.parametrize("style", ["json", "text"])
def test_control_characters_are_logged_escaped(capsys: CAPTURE, style: str) -> None:
    """A table's name cannot drive the terminal of whoever reads the log."""
    logs.configure(style=style)
    logs.listener()("detected", {"table": "a\x1b[2J\x9bb\u202ec"})
    line = capsys.readouterr().err.rstrip("\n")
    assert not set("\x1b\x9b\u202e") & set(line)
    assert "a" in line


def test_other_libraries(capsys: CAPTURE) -> None:
    """Their warnings come in the same form, with who said it and any traceback; what they chatter does not come."""
    logs.configure(level="debug", secrets=[SECRET])
    logging.getLogger("some.library").info("chatter about %s", SECRET)
    logging.getLogger("some.library").warning("slow: %s", SECRET)
    try:
        int(SECRET)
    except ValueError:
        logging.getLogger("other").exception("broken")
    slow, broken = lines(capsys)
    assert (slow["event"], slow["logger"], slow["level"]) == (f"slow: {HIDDEN}", "some.library", "warning")
    assert "Traceback" in broken["exception"]
    assert SECRET not in str(broken) + str(slow)
    assert "4711" not in str(broken)


def test_configured_again(capsys: CAPTURE) -> None:
    """The last configuration holds, and nothing is logged twice."""
    for _ in range(3):
        logs.configure()
    logging.getLogger("some.library").warning("once")
    assert len(lines(capsys)) == 1


def test_no_secret_is_logged(capsys: CAPTURE) -> None:
    """However it is quoted and however deep it lies: as it is, by Python, as JSON, in a URL."""
    logs.configure(secrets=[SECRET])
    deep = {"error": f"x{SECRET}y", "repr": repr(SECRET), "list": [{"a": (SECRET,)}], SECRET: 1}
    logs.listener()(
        "job_crashed", {**deep, "url": "http://h/hush%2F4711%20%22quoted%22%5C", "object": ValueError(SECRET)}
    )
    said = capsys.readouterr().err
    assert "4711" not in said
    assert "quoted" not in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql+psycopg://me:pw@host:1/db", "at postgresql+psycopg://***@host:1/db"),
        ("json://token@localhost/x and s3://a/b", "json://***@localhost/x and s3://a/b"),
        ("a@b.c wrote to https://host/path@2", "a@b.c wrote to https://host/path@2"),
        ("https://me:p@ss@host/x", "https://***@host/x"),
        ("abfss://lake@account.dfs.core.windows.net/x", "abfss://lake@account.dfs.core.windows.net/x"),
    ],
)
def test_userinfo_of_urls(text: str, shown: str) -> None:
    """What stands before @ in a URL is hidden, whoever wrote it, but for the container of a location in Azure."""
    assert Redaction().text(text) == shown


def test_what_is_no_secret() -> None:
    """Very short values stand in too many words; without secrets a text stays as it is."""
    assert Redaction(["1", "abc", ""]).text("1 abc") == "1 abc"
    assert Redaction().text("as it is") == "as it is"


def test_a_secret_that_was_given_encoded() -> None:
    """A password that is percent-encoded for its URL is hidden where it stands decoded."""
    assert Redaction(["hunter2%40Tango99"]).text("as hunter2@Tango99 it is") == f"as {HIDDEN} it is"


@examples(50)
@given(st.text(min_size=4), st.text(), st.text())
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    """Whatever the secret, the text around it does not bring it back."""
    shown = Redaction([secret]).text(before + secret + after)
    assert secret not in shown.replace(HIDDEN, "\0")
