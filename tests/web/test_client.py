"""The client, and the commands that ask a service by it, over a real socket."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from inspect import getmembers, ismethod, signature
from typing import Any

import httpx2
import pytest

from icewright import __version__
from icewright.app.cli import main
from icewright.app.cli.remote import RemoteBackend
from icewright.app.web.identity import Access
from icewright.app.web.running import serving
from icewright.client import Client, Refusal, UnknownAnswer
from icewright.core.errors import StorageUnavailable, UsageError
from icewright.core.guardrails import parse_guardrail
from icewright.flow.execute import execute_dequeued
from tests.web.conftest import HERE, Served
from tests.web.test_access import bearer
from tests.web.test_vacuums import vacuum_ended

NAME = "lake.sales.orders"
PAGING = {"limit", "cursor"}


@pytest.fixture
def address(served: Served) -> Iterator[str]:
    """A service that listens."""
    served.evaluate()
    with serving(served.app(access=Access(required=True)), HERE, 0) as port:
        yield f"http://{HERE}:{port}"


def token(served: Served, role: str, *scopes: str) -> str:
    """Somebody's token."""
    return bearer(served, role, *scopes)["authorization"].removeprefix("Bearer ")


def test_client(served: Served, address: str) -> None:
    """Lists, starts, follows and cancels; what is refused, unknown or away is each its own error."""
    with Client(address, token(served, "operator")) as client:
        assert client.me()["name"] == "operator"
        assert [t["table"] for t in client.tables(sort="health")] == [NAME]
        assert client.table(NAME)["state"] == "due"
        assert client.plan()["jobs"][0]["table"] == NAME
        with pytest.raises(Refusal, match="owner"):
            client.start(NAME, ["expire_snapshots"])
        started = client.start(NAME, ["compact"], key="k")
        assert client.start(NAME, ["compact"], key="k") == started
        (job,) = served.bench.store.jobs.dequeue("w", ["lake"], served.bench.clock.now(), 1)
        execute_dequeued(served.runtime, job)
        assert (started["job_id"], client.follow(job.job_id)["state"]) == (job.job_id, "succeeded")
        assert [j["job_id"] for j in client.jobs(NAME)] == [job.job_id]
        with pytest.raises(UsageError, match="does not run"):
            client.cancel(job.job_id)
        with pytest.raises(UsageError, match="no table"):
            client.table("lake.sales.none")
    with Client(address, "wrong") as client, pytest.raises(Refusal, match="ICEWRIGHT_TOKEN"):
        client.me()
    with Client("http://127.0.0.1:1") as client, pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:1"):
        client.me()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>Log in</html>", "without a document"),
        ("null", "without a document"),
        ("{}", "lacks next"),
        ("[]", "without a document"),
        ('{"items": [], "next": "MQ"}', "without pages that end"),
    ],
)
def test_an_answer_of_another_service(
    body: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a proxy that wants a login; the client and commands say so."""
    client = partial(Client, "http://icewright.example", transport=httpx2.MockTransport(lambda _: answer(body)))
    with client() as opened, pytest.raises(UnknownAnswer, match=message):
        list(opened.tables())
    assert message in asked(client, monkeypatch, capsys, "history")


def test_an_answer_of_an_older_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A field that a command shows and the service does not know is named, with the release that asks for it."""
    page = json.dumps({"items": [{"table": NAME}], "next": None})
    client = partial(Client, "http://icewright.example", transport=httpx2.MockTransport(lambda _: answer(page)))
    for command in ("history", "tables", "deletions"):
        assert f"another release than {__version__}" in asked(client, monkeypatch, capsys, command), command


def test_an_address_or_token_that_is_none() -> None:
    """Is an error of usage; a token may end with the newline of its file, and no message has the password of a URL."""
    wrong = [("http://[::1", ""), ("http://a:b", ""), ("lake", ""), ("http://a", "\xfc"), ("http://a", "a\nb")]
    for server, token in wrong:
        with pytest.raises(UsageError, match=r"no address|no token has"):
            Client(server, token)

    def echo(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError(request.headers["authorization"])

    for server, said in (
        ("http://a", "at http://a does not answer: Bearer abc"),
        ("http://u:hush@a", r"http://\*\*\*@a "),
    ):
        with (
            Client(server, "abc\n", transport=httpx2.MockTransport(echo)) as client,
            pytest.raises(StorageUnavailable, match=said),
        ):
            client.me()


def answer(body: str) -> httpx2.Response:
    """What a service sends."""
    return httpx2.Response(200, text=body)


def asked(
    client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> str:
    """What a command says that fails."""
    monkeypatch.setattr(RemoteBackend, "_client", lambda _: client())
    monkeypatch.setattr(sys, "argv", ["icewright", "--server", "http://icewright.example", command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    return capsys.readouterr().err


def test_each_route_of_the_api_has_a_method(served: Served) -> None:
    """It asks by the path, filters and fields that the API describes, which ignores filters that it does not know."""
    requests: list[httpx2.Request] = []

    def record(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        raise httpx2.ConnectError("nothing listens")

    values = {"str": "x", "Filter": "x", "int": 1, "bool": True, "Order": "asc", "Sequence[str]": ["x"]}
    values |= {"datetime": datetime.now(UTC), "Mapping[str, Any]": {}}
    with Client("http://icewright.example", transport=httpx2.MockTransport(record)) as client:
        for name, method in getmembers(client, ismethod):
            if name.startswith("_") or name in ("close", "follow"):
                continue
            given = {key: values[one.annotation.split(" | ")[0]] for key, one in signature(method).parameters.items()}
            for action in ("pause", "resume", "cancel", "run") if name == "bulk" else ("",):
                with pytest.raises(StorageUnavailable):
                    list(method(**given | ({"action": action} if action else {})))
    api = served.app().openapi()
    for path, operations in api["paths"].items():
        for verb, operation in operations.items():
            if not path.startswith("/api/v1/") or path == "/api/v1/events":  # which catalogs and engines send
                continue
            at = re.compile(re.sub(r"\{.*?\}", "(x|1)", path))
            asked = [one for one in requests if one.method == verb.upper() and at.fullmatch(one.url.path)]
            assert asked, f"no method asks {verb} {path}"
            filters = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"} - PAGING
            assert set(asked[0].url.params) - PAGING == filters, path
            body = json.loads(asked[0].content or "{}").keys()
            if body:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                assert body <= api["components"]["schemas"][reference.rpartition("/")[2]]["properties"].keys(), path


def test_commands(
    served: Served, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same words, answered by the service, without any configuration here."""
    monkeypatch.setenv("ICEWRIGHT_TOKEN", token(served, "admin"))

    def said(*words: str, code: int = 0) -> Any:
        monkeypatch.setattr(sys, "argv", ["icewright", "--server", address, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        assert (ended.value.code or 0) == code, out
        return json.loads(out.out) if "--json" in words and code == 0 else out.out + out.err

    assert said("tables", "--json")["tables"][0]["table"] == NAME
    for elsewhere in (["check", NAME], ["pin", NAME, "1", "--reader", "r"], ["cycle"], ["token", "list"]):
        assert "leave out --server" in said(*elsewhere, code=2)
    assert "compact" in said("explain", NAME)
    assert [one["table"] for one in said("explain", "lake.sales.*", "--json")] == [NAME]
    assert "no table matches" in said("explain", "lake.sold.*", code=2)
    assert said("plan", "--json")["jobs"][0]["table"] == NAME
    done = said("run", NAME, "--op", "expire_snapshots", "--dry-run", "--json")
    assert (done["state"], done["dry_run"]) == ("succeeded", True)
    said("pause", NAME, "--reason", "why")
    assert "is paused (why)" in said("run", NAME, "--op", "compact", code=2)
    said("resume", NAME)
    said("config", "set", "lake.sales", "importance=high")
    said("config", "set", "lake.sales", "compact.min_input_files=9")
    assert served.bench.store.rules.list()[0].settings == {"importance": "high", "compact.min_input_files": 9}
    served.bench.guardrails = (parse_guardrail("guardrails[0]", "importance in normal, low"),)
    properties = {"icewright.remove_orphans.mode": "delete"}
    served.bench.catalog.put(replace(served.bench.catalog.load(served.ref), properties=properties))
    explained = " ".join(said("config", "explain", NAME).split())
    assert "high held by guardrail importance in normal, low" in explained
    assert "properties.allow: remove_orphans.mode" in explained
    served.evaluate()
    assert "properties.allow: remove_orphans.mode" in " ".join(said("explain", NAME).split())
    (ignored,) = said("explain", NAME, "--json")["ignored_properties"]
    assert ignored["property"] == "icewright.remove_orphans.mode"
    job = served.job()
    assert said("vacuum", "lake", "--dry-run", "--json")["metrics"]["num_tables"] == 1
    assert "The service vacuums lake" in said("vacuum", "lake", "--yes")
    vacuum_ended()
    assert job in [found["job_id"] for found in said("history", "--json")["jobs"]]
    assert said("show", job, "--json")["state"] == "succeeded"
    assert "does not run" in said("cancel", job, code=2)
