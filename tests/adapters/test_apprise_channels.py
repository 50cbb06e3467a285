"""Channels by Apprise, told over HTTP for real: what is sent, what a failure says, and that no address is repeated."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from icewright.adapters.notify.apprise_channels import AppriseChannel, open_channels
from icewright.core.alerts import Severity
from icewright.core.errors import ChannelUnavailable, ConfigError
from tests.servers.loopback import free_port

TOKEN = "hush-4711-token"
pytestmark = pytest.mark.external


@dataclass
class Receiver:
    """A service that takes messages over HTTP; `status` is what it answers."""

    port: int = field(default_factory=free_port)
    status: int = 200
    taken: list[dict[str, Any]] = field(default_factory=list)
    server: HTTPServer | None = None

    @property
    def url(self) -> str:
        """Its address, with secrets in every place where services have them."""
        return f"json://me:{TOKEN}@localhost:{self.port}/{TOKEN}/x?+X-Token={TOKEN}"

    def start(self) -> None:
        """Come up."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200:
                    receiver.taken.append(json.loads(body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = HTTPServer(("localhost", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Go down."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A service that is down."""
    made = Receiver()
    yield made
    made.stop()


class Log(logging.Handler):
    """Everything that reaches the root, where logs are written."""

    def __init__(self) -> None:
        super().__init__(1)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.text += self.format(record)


@pytest.fixture
def logged() -> Iterator[Log]:
    """What is logged at the most talkative level."""
    root, log = logging.getLogger(), Log()
    before = root.level
    root.addHandler(log)
    root.setLevel(1)
    yield log
    root.removeHandler(log)
    root.setLevel(before)


def channel(receiver: Receiver) -> AppriseChannel:
    """The service as a channel."""
    return open_channels([receiver.url])["json"]


@pytest.mark.parametrize(
    ("severity", "kind"), [(Severity.INFO, "info"), (Severity.WARNING, "warning"), (Severity.CRITICAL, "failure")]
)
def test_what_is_sent(receiver: Receiver, severity: Severity, kind: str) -> None:
    """Title and body as they are, whatever they hold, and the severity in Apprise's words."""
    receiver.start()
    channel(receiver).send("[warning] lake.`a b`.t", "<b>100 %</b> of ☃ *and* {x}\nnext line", severity)
    (taken,) = receiver.taken
    assert (taken["title"], taken["type"]) == ("[warning] lake.`a b`.t", kind)
    assert taken["message"] == "<b>100 %</b> of ☃ *and* {x}\nnext line"


def test_down_then_up(receiver: Receiver, logged: Log) -> None:
    """A service that does not answer is an error that says what to check; when it is back it takes messages."""
    telling = channel(receiver)
    with pytest.raises(ChannelUnavailable, match="channel json: it cannot be reached: check the host and port"):
        telling.send("a", "b", Severity.INFO)
    receiver.start()
    telling.send("a", "b", Severity.INFO)
    assert len(receiver.taken) == 1
    assert TOKEN not in logged.text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "make a new one and put it where the configuration takes it from"),
        (404, "it knows no such webhook or channel"),
        (429, "it was told too much at once"),
        (400, "it refused the message"),
        (503, "the service failed: told again later"),
    ],
)
def test_a_service_that_refuses(receiver: Receiver, logged: Log, status: int, said: str) -> None:
    """The error has the status and what mends it, and neither it nor any log has a part of the address."""
    receiver.status = status
    receiver.start()
    with pytest.raises(ChannelUnavailable) as caught:
        channel(receiver).send("a", "b", Severity.CRITICAL)
    assert f"(HTTP {status})" in str(caught.value)
    assert said in str(caught.value)
    for text in (str(caught.value), repr(caught.value), logged.text):
        assert TOKEN not in text
        assert str(receiver.port) not in text


def test_names() -> None:
    """A channel is called by its kind, numbered where there are more; nothing of the address is in the name."""
    urls = [
        f"json://localhost/{TOKEN}",
        "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    ]
    assert list(open_channels([*urls, f"json://me:{TOKEN}@other"])) == ["json", "slack", "json 2"]
    assert open_channels([]) == {}


def test_urls_that_are_none(logged: Log) -> None:
    """Every one is named by its place, and none is repeated."""
    with pytest.raises(ConfigError) as caught:
        open_channels([f"nonsense://{TOKEN}", "json://localhost", f"slack://{TOKEN}", "", f"{TOKEN}"])
    assert [fault.partition(":")[0] for fault in caught.value.faults] == [
        f"alerts.channels[{place}]" for place in (0, 2, 3, 4)
    ]
    assert TOKEN not in str(caught.value)
    assert TOKEN not in logged.text
