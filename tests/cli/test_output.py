"""Tables fit the terminal, and what others named cannot drive it."""

from __future__ import annotations

import json
import re
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from icewright.app import output
from icewright.app.cli import reading, views
from icewright.app.cli.base import confirm
from icewright.app.output import Column
from icewright.app.terminal_tables import fit

JOBS: list[dict[str, Any]] = [
    {
        "job_id": f"20261124-213005-{number:08x}",
        "table": "lake.web.sessions" if number else "lake.analytics.clickstream_events",
        "state": "succeeded",
        "trigger": "cycle",
        "started": "2026-11-24T21:30:05+00:00",
        "gb_hours": 0.0123 if number else None,
        "money": None,
        "summary": "compact: rewrote 120 files into 3; expire_snapshots: expired 12 snapshots, deleted 240 files",
    }
    for number in range(2)
]


@pytest.fixture(params=[80, 100, 160])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of a terminal."""
    monkeypatch.setattr(output.console(), "_width", request.param)
    return int(request.param)


def test_a_history_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """No line is longer than the terminal, and ids, names and words are whole at any width."""
    views.show_jobs(JOBS)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    words = {word for line in printed.splitlines() for word in line.split()}
    assert words >= {value for job in JOBS for value in (job["job_id"], job["table"], job["state"])}
    assert words >= set(JOBS[0]["summary"].split())
    assert "0.012" in words or width == 80
    assert ("2026-11-24" in words) is (width > 100)  # ids say it too


def test_a_job_says_when_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """Its start, its end and its cost stand below its name."""
    job = {**JOBS[1], "actor": "ann", "finished": "2026-11-24T21:31:00+00:00"}
    views.show_job_detail(job | dict.fromkeys(("runs", "removed", "waiting", "files"), ()), files=False)
    line = capsys.readouterr().out.splitlines()[1]
    assert line == "started 2026-11-24 21:30:05; finished 2026-11-24 21:31:00; 0.012 GB-hours"


def test_columns_of_the_highest_rank_go_first() -> None:
    """Text that wraps gives way to the width of its longest word before a column is left out."""
    columns = (Column("id"), Column("note", wrap=True), Column("size", rank=1), Column("time", rank=2))
    cells = [["x" * 10, "some words here", "y" * 10, "z" * 10]]
    assert fit(columns, cells, 60) == ({0: 10, 1: 15, 2: 10, 3: 10}, [])
    assert fit(columns, cells, 41) == ({0: 10, 1: 5, 2: 10, 3: 10}, [])
    assert fit(columns, cells, 35) == ({0: 10, 1: 11, 2: 10}, [])
    assert fit(columns, cells, 20) == ({0: 10, 1: 8}, [])
    assert fit(columns, cells, 15) == ({0: 10}, [1])  # below each row
    few = [["x" * 40, "", "y" * 10, "z" * 10], *[["x" * 10, text, "y" * 10, "z" * 10] for text in ("", "words", "")]]
    assert fit(columns, few, 50) == ({0: 10, 1: 5, 2: 10, 3: 10}, [])  # one long id costs the others no column
    assert fit(columns, few, 37) == ({0: 10, 2: 10, 3: 10}, [1])  # nor does a note that few have
    assert fit(columns, [["x", "note", "", "-"]], 60) == (
        {0: 2, 1: 4},
        [],
    )  # blank columns are left out


def test_a_long_name_widens_no_list(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands whole above its row, and the other rows are as they would be without it."""
    long, table = f"lake.sales.{'x' * 160}", {"state": "healthy", "due": ["compact"], "files": 3, "bytes": 3}
    table |= {"health": 90, "succeeded_at": None, "error": None, "paused": None, "job": None}
    views.show_tables([{"table": name, **table} for name in (long, "lake.sales.orders")])
    title, header, name, *rest = capsys.readouterr().out.splitlines()
    assert (title, header.split()[:2], name) == ("Tables", ["table", "health"], long)
    assert [line.split()[:3] for line in rest] == [["90", "healthy", "compact"], ["lake.sales.orders", "90", "healthy"]]
    assert max(map(len, (header, *rest))) <= width


def test_a_reason_stays_at_any_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Why a table is blocked is beside its row or below it; where no table has a reason there is no column."""
    table = {"state": "due", "due": ["compact"], "files": 3, "bytes": 3, "health": 90, "succeeded_at": None}
    table |= {"table": "lake.a.b", "error": None, "paused": None, "job": None, "blocked": None}
    why = "remove_orphans: two tables share the location"
    views.show_tables([table, {**table, "state": "blocked", "blocked": why}])
    assert why in " ".join(capsys.readouterr().out.split())
    views.show_tables([table])
    assert "reason" not in capsys.readouterr().out


@pytest.mark.cases(155)
def test_a_name_forges_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Its newlines are escapes in cells and lines, and the lines of a message that go on are indented."""
    evil = "lake.a.b\nlake.prod.orders\t100"
    output.rows("Tables", ["table", "health"], [[evil, 3]])
    output.echo(f"[bold]{output.escape(evil)}[/]: no fault")
    output.error(f"{evil}: it cannot be read")
    captured = capsys.readouterr()
    assert not re.search("^lake.prod", captured.out + captured.err, re.MULTILINE)
    assert captured.out.count(r"lake.a.b\nlake.prod.orders\t100") == 2


@pytest.mark.cases(155)
def test_control_and_invisible_characters_are_printed_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cells, lines, messages, questions and JSON; the document still has the same text."""
    evil = "a\x1b[2Jb\x9b31m\u202e\u200e\u200b\xad\U000e0041c\r"
    output.rows(evil, [evil], [[evil]])
    output.echo(output.escape(evil))
    output.error(evil)
    monkeypatch.setattr("sys.stdin", StringIO("y\n"))
    confirm(evil, yes=False)
    output.print_json({"name": evil})
    captured = capsys.readouterr()
    assert not set("\x1b\x9b\u202e\u200e\u200b\xad\U000e0041\r") & set(captured.out + captured.err)
    assert captured.out.count(r"a\x1b[2Jb\x9b31m\u202e\u200e\u200b\xad\U000e0041c\r") == 4
    assert json.loads(captured.out[captured.out.index("{") :]) == {"name": evil}


def test_many_files_are_counted_and_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """The sum says that it is a lower bound where a size is not known."""
    files = [{"path": f"f{number}", "bytes": 1024 if number else None, "kind": "data"} for number in range(25)]
    views.show_files("Files", files, (Column("kind"), Column("size"), "path"), everything=False)
    few = capsys.readouterr().out
    assert "25 files, at least 24.0 KB; --files lists all" in few
    assert ("f19" in few, "f20" in few) == (True, False)
    views.show_files("Files", files, (Column("kind"), Column("size"), "path"), everything=True)
    assert "f24" in capsys.readouterr().out


def test_files_stay_on_one_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their common folder is in the title, and what differs is whole at 80 columns."""
    monkeypatch.setattr(output.console(), "_width", 80)
    folder = "s3://lake/warehouse/web.db/clicks/data"
    names = [f"day=2026-11-2{day}/00000-{day}-0257320a-6de7-479f-81c6.parquet" for day in range(2)]
    files = [{"path": f"{folder}/{name}", "bytes": 1024, "kind": "data"} for name in names]
    views.show_files("Files", files, (Column("kind"), Column("size"), "path"), everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Files below {folder}/"
    assert [line.split()[-1] for line in lines[2:]] == names
    views.show_files("Files", files[:1], ("path",), everything=False)
    assert f"{folder}/{names[0]}" in capsys.readouterr().out.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("given", [{"paused": "by hand"}, {"error": "gone"}, {"ignored_properties": ["x"]}], ids=str)
def test_of_many_tables_those_with_something_to_say_are_listed(
    given: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one list. A table of which nothing is due is counted, unless it is paused, unreadable or the like."""
    document: dict[str, Any] = {
        "table": "lake.a.b",
        "paused": None,
        "error": None,
        "ignored_properties": [],
        "verdicts": [],
    }
    verdicts = [{"operation": "compact", "verdict": verdict, "reason": "so"} for verdict in ("not_due", "blocked")]
    quiet, blocked = (
        {**document, "table": f"lake.a.{n}", "verdicts": [v]} for n, v in zip("qz", verdicts, strict=True)
    )
    ignored = [{"property": "x", "value": "1", "reason": "no number"}]
    noted: dict[str, Any] = {**document, "table": "lake.a.n", "paused": "by hand", "ignored_properties": ignored}
    documents = [quiet, blocked, noted]
    monkeypatch.setattr(reading, "backend", lambda: SimpleNamespace(explain=lambda *_: (documents, [])))
    reading.explain(table=None, namespace=None, everything=False, as_json=False)
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()] == [
        ["Verdicts"],
        ["table", "operation", "verdict", "reason"],
        ["lake.a.z", "compact", "blocked", "so"],
        ["lake.a.n", "paused", "by", "hand"],
        ["ignored", "x", "=", "'1':", "no", "number"],
        ["Nothing", "is", "due", "on", "1", "of", "3", "tables;", "--all", "lists", "every", "verdict"],
    ]
    assert reading._stands_out({**document, **given})


def test_details_of_events_are_no_python() -> None:
    """Lists have commas; what is blank is left out."""
    event = {"operations": ["compact", "remove_orphans"], "files": 0, "reason": "", "until": None, "notes": []}
    assert output.details(event) == "operations=compact,remove_orphans files=0"


def test_a_long_reason_goes_below_its_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that would take many lines of a narrow column has the whole width; a short one stays in its column."""
    monkeypatch.setattr(output.console(), "_width", 80)
    path = f"file:///data/warehouse/{'0123456789abcdef' * 12}/00004.metadata.json"
    reason = f"refused: {path} is metadata of another table: two tables share the location, and nothing is deleted"
    output.rows("Verdicts", (Column("operation"), "reason"), [("compact", "nothing to do"), ("expire", reason)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["compact", "nothing", "to", "do"]
    assert lines[3].split() == ["expire"]
    assert all(line.startswith("    ") and len(line) <= 80 for line in lines[4:])
    assert len(lines) <= 10
