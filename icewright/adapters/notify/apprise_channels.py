"""Notification channels by Apprise URLs. The URLs are secrets: no message repeats one, and Apprise's log is off."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from icewright.core.alerts import Severity
from icewright.core.errors import ChannelUnavailable, ConfigError

if TYPE_CHECKING:
    from apprise import Apprise, AppriseAsset, AppriseResult, NotifyBase

TIMEOUT_SECONDS = 30
_STATUS = re.compile(r"error=(\d{3})\b")
_REMEDIES: Mapping[int, str] = {
    401: "it refused the token or password: make a new one and put it where the configuration takes it from",
    403: "it refused the token or password: make a new one and put it where the configuration takes it from",
    404: "it knows no such webhook or channel: make a new one, or correct the URL",
    410: "it knows no such webhook or channel any more: make a new one",
    429: "it was told too much at once: the rest is told later",
}
_TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}


class AppriseChannel:
    """The Notifier port over one Apprise URL, named after the kind of service."""

    def __init__(self, name: str, service: Apprise) -> None:
        self.name, self._service = name, service

    def send(self, title: str, body: str, severity: Severity) -> None:
        """Send a message. Raises `ChannelUnavailable` with the reason and the remedy."""
        from apprise import NotifyFormat, NotifyType  # noqa: PLC0415 - see `_service`

        try:
            kind = NotifyType(_TYPES[severity])
            result = self._service.notify(body=body, title=title, notify_type=kind, body_format=NotifyFormat.TEXT)
        except Exception as error:  # noqa: BLE001 - one service's plugin must not keep an alert from others
            raise ChannelUnavailable(f"channel {self.name}: unexpected {type(error).__name__}") from None
        if not result:
            raise ChannelUnavailable(f"channel {self.name}: {_reason(result)}")


def open_channels(urls: Sequence[str]) -> dict[str, AppriseChannel]:
    """Return the channels by name: the kind of service, numbered if there are several of one kind.

    Raises `ConfigError` with the places of the URLs that Apprise does not take.
    """
    channels: dict[str, AppriseChannel] = {}
    faults: list[str] = []
    for index, url in enumerate(urls):
        opened = _service(url)
        if opened is None:
            faults.append(
                f"alerts.channels[{index}]: Apprise knows no such service, or the URL lacks something; "
                "https://github.com/caronc/apprise/wiki says how the URL of each service is written"
            )
            continue
        kind, service = opened
        number = 1 + sum(name.partition(" ")[0] == kind for name in channels)
        name = kind if number == 1 else f"{kind} {number}"
        channels[name] = AppriseChannel(name, service)
    if faults:
        raise ConfigError(faults)
    return channels


def _service(url: str) -> tuple[str, Apprise] | None:
    """Return the kind of service and its Apprise client."""
    from apprise import Apprise  # noqa: PLC0415 - loads a module for each of 100 services: only where one is used

    _silence_logs()
    asset = _asset()
    plugin: NotifyBase | None = Apprise.instantiate(url.strip(), asset=asset) if url.strip() else None
    if plugin is None:
        return None
    service = Apprise(asset=asset)
    service.add(plugin)
    return plugin.url(privacy=True).partition("://")[0], service


def _asset() -> AppriseAsset:
    from apprise import AppriseAsset  # noqa: PLC0415 - see `_service`

    return AppriseAsset(
        app_id="Icewright",
        app_desc="Icewright",
        app_url="",
        async_mode=False,
        secure_logging=True,
        service_timeout=TIMEOUT_SECONDS,
    )


def _silence_logs() -> None:
    """Silence Apprise's log, which has URLs, and urllib3's, which has paths."""
    apprise = logging.getLogger("apprise")
    apprise.propagate = False
    apprise.setLevel(logging.WARNING)
    if not apprise.handlers:
        apprise.addHandler(logging.NullHandler())
    logging.getLogger("urllib3").setLevel(logging.WARNING)


def _reason(result: AppriseResult) -> str:
    """Return why delivery failed, in our own words: Apprise's may contain the address."""
    text = " ".join(entry.message for entry in result.logs())
    if match := _STATUS.search(text):
        status = int(match[1])
        broken = status >= 500  # noqa: PLR2004 - the service's own fault
        remedy = "the service failed: told again later" if broken else "it refused the message"
        return f"{_REMEDIES.get(status, remedy)} (HTTP {status})"
    if result.status.name == "TIMEOUT":
        return f"it did not answer within {TIMEOUT_SECONDS} s: check the host and port of the URL, and the network"
    if "onnection error" in text:
        return "it cannot be reached: check the host and port of the URL, the network and the proxy"
    return "it did not take the message, and does not say why: check each part of the URL"
