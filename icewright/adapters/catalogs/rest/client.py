"""Requests to a REST catalog, and its answers about a table: PyIceberg's session with time-outs and retries."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urljoin

import msgspec
from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog as PyIcebergRestCatalog
from pyiceberg.exceptions import RESTError, ServerError, ServiceUnavailableError, TooManyRequestsError
from requests import Response, Session
from requests.exceptions import ReadTimeout, RequestException

from icewright.adapters.catalogs.replies import (
    ListingSize,
    PacedAdapter,
    ReplySize,
    read_within_limits,
    remedy,
    was_never_sent,
)
from icewright.adapters.catalogs.staging import NeverSent, RequestOutcomeUnknown
from icewright.adapters.catalogs.translate.rest import DELEGATION, RestCatalogProperties
from icewright.core.allowlist import Allowlist, require_hosts
from icewright.core.errors import CatalogUnavailable, MetadataUnreadable, requires_extra
from icewright.core.runs import backoff
from icewright.core.table import TableRef
from icewright.ports import Clock

PARALLEL = 8  # requests at the same time
_SECONDS = (10.0, 90.0)  # to connect, and to wait for the next bytes of an answer
_ATTEMPTS = 5
_LONGEST_WAIT = timedelta(seconds=60)
_RETRYABLE = frozenset({429, 503})  # the server did nothing: the request may be repeated
FAILED = frozenset({500, 502, 504})
_TOKEN_EXPIRED = frozenset({401, 419})
_BUSY = ServerError, ServiceUnavailableError, TooManyRequestsError  # PyIceberg's errors for transient failures
_CAUSE = re.compile(r"\[Errno [^\]]*\] [\w ]+|timed out|certificate verify failed|Connection aborted|Name or service")


class CredentialsRefused(CatalogUnavailable):
    """Raised when the server refuses the credentials, also once they are renewed, for one path at least."""


@dataclass(frozen=True, slots=True)
class RestResponse:
    """A response of the REST server: status, headers and JSON body."""

    status: int
    body: bytes = field(repr=False)
    etag: str | None = None
    wait: timedelta | None = None  # from the `Retry-After` header

    @property
    def message(self) -> str:
        """Return the server's own message in one line, without its stack trace."""
        try:
            error = msgspec.json.decode(self.body).get("error")
            message = error["message"] if isinstance(error, dict) else error
            return f"{self.status}: {str(message).strip().splitlines()[0]}"[:500]
        except (msgspec.MsgspecError, AttributeError, KeyError, IndexError, UnicodeDecodeError):
            return f"{self.status}"


class BoundedRestCatalog(PyIcebergRestCatalog):
    """PyIceberg's client whose sessions end their requests."""

    def _create_legacy_oauth2_auth_manager(self, session: Session) -> Any:  # noqa: ANN401 - PyIceberg's
        """Limit the session before it makes its first request."""
        self._limit(session)
        return super()._create_legacy_oauth2_auth_manager(session)

    def _create_session(self) -> Session:
        with requires_extra("glue", "rest.sigv4-enabled"):
            session = super()._create_session()
        self._limit(session)
        return session

    def _limit(self, session: Session) -> None:
        """Limit the time of requests, and the size of replies, of a session."""
        adapter = PacedAdapter(pool_connections=PARALLEL, pool_maxsize=2 * PARALLEL)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        session.request = partial(session.request, timeout=_SECONDS)  # type: ignore[method-assign]
        session.hooks["response"] = [partial(read_within_limits, catalog=self.name)]


class _Client(BoundedRestCatalog):
    """The same for requests of ours, as loading and committing is, that follow redirects to declared hosts alone."""

    def __init__(self, name: str, allowlist: Allowlist | None, **properties: str) -> None:
        self._allowlist = allowlist
        super().__init__(name, **properties)

    def _limit(self, session: Session) -> None:
        super()._limit(session)
        target_of = session.get_redirect_target

        def allowed_target(resp: Response) -> str | None:
            target = target_of(resp)
            if target is not None:
                require_hosts(self._allowlist, self.name, {"Location": urljoin(resp.url, target)})
            return target

        session.get_redirect_target = allowed_target  # type: ignore[method-assign]

    def _create_session(self) -> Session:
        session = super()._create_session()
        if not self.properties.get(DELEGATION):
            session.headers.pop("X-Iceberg-Access-Delegation", None)
        return session


@dataclass
class RestClient:
    """Send requests to one REST server; the first request connects. Thread-safe."""

    properties: RestCatalogProperties
    clock: Clock
    allowlist: Allowlist | None = None
    _connected: _Client | None = field(default=None, init=False)

    @property
    def where(self) -> str:
        """Return the catalog's name and address for error messages."""
        return f"catalog {self.properties.name} at {self.properties.uri}"

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the properties with what the server's configuration adds and overrides."""
        return self._client().properties

    def offers(self, endpoint: str) -> bool:
        """Return whether the server's configuration lists an endpoint, such as `GET /v1/{prefix}/namespaces`."""
        return endpoint in {str(e) for e in self._client()._supported_endpoints}  # noqa: SLF001 - PyIceberg keeps it

    def close(self) -> None:
        """Close the HTTP connections to the server, without waiting for a request that hangs."""
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()

    def namespace(self, *levels: str) -> str:
        """Return a namespace as the protocol joins its levels.

        The caller quotes the result where it becomes part of a path.
        """
        separator = self._client()._namespace_separator  # noqa: SLF001
        return separator.join(quote(level, safe="") for level in levels)

    def get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        size: ReplySize | None = None,
    ) -> RestResponse:
        """Send a GET request as `ask` does. Raises `CatalogUnavailable` when no response came, or a failure."""
        try:
            answer = self.ask(path, params, headers, size)
        except RequestOutcomeUnknown as error:
            raise self._unreachable(error) from error
        if answer.status in FAILED:
            raise self._failing(answer)
        return answer

    def ask(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        size: ReplySize | None = None,
    ) -> RestResponse:
        """Send a GET request and repeat it while the server is busy or fails; return the last response.

        Raises `RequestOutcomeUnknown` when no response came, `CatalogUnavailable` when the server stays busy, and what
        `size` raises; without it the limit of a listing holds for the response. A request whose response was awaited in
        vain is not repeated.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self.send("GET", path, size, params=params, headers=headers)
            except RequestOutcomeUnknown as error:
                if attempt == _ATTEMPTS or isinstance(error.__cause__, ReadTimeout):
                    raise
                wait = backoff(attempt)
            else:
                if answer.status not in _RETRYABLE | FAILED or (attempt == _ATTEMPTS and answer.status in FAILED):
                    return answer
                if attempt == _ATTEMPTS:
                    raise self._failing(answer)
                wait = answer.wait or backoff(attempt + 2)
                if answer.status in _RETRYABLE and wait > (_ATTEMPTS - attempt) * _LONGEST_WAIT:
                    raise self._failing(answer)  # asking again before then is useless
            self.clock.sleep(min(wait, _LONGEST_WAIT).total_seconds())

    def send(self, method: str, path: str, size: ReplySize | None = None, **request: Any) -> RestResponse:
        """Send one request once; an expired token is renewed and the request repeated.

        Raises `RequestOutcomeUnknown`, `NeverSent`, `CredentialsRefused`, and `CatalogUnavailable` when no token comes.

        A path that begins with a slash lies below the server's address, any other below the catalog's prefix.
        """
        client = self._client()
        request = {**request, "hooks": (size or ListingSize.of(self.properties.name)).hooks}
        answer = self._send(client, method, path, request)
        if answer.status in _TOKEN_EXPIRED and self._renewed(client):
            answer = self._send(client, method, path, request)
        if answer.status in _TOKEN_EXPIRED:
            raise CredentialsRefused(
                f"{self.where} does not accept the credentials ({answer.message}); correct credential or token in "
                f"catalogs.{self.properties.name}.properties"
            )
        return answer

    def _send(self, client: _Client, method: str, path: str, request: Mapping[str, Any]) -> RestResponse:
        try:
            url = client.uri.rstrip("/") + path if path.startswith("/") else client.url(path)
            response = client._session.request(method, url, **request)  # noqa: SLF001 - as `offers`
        except (RequestException, OSError) as error:
            if was_never_sent(error):
                raise NeverSent(str(self._unreachable(error))) from error
            raise RequestOutcomeUnknown(cause(error)) from error
        wait = _retry_after(response.headers.get("Retry-After"), self.clock.now())
        return RestResponse(response.status_code, response.content, response.headers.get("ETag"), wait)

    def _renewed(self, client: _Client) -> bool:
        """Fetch a new token, if there is a credential to fetch one with; return whether there was."""
        if not self.properties.extra.get("credential"):
            return False
        self._translating_errors(client._refresh_token)  # noqa: SLF001
        return True

    def _client(self) -> _Client:
        client = self._connected
        if client is None:  # no lock: a request that hangs would keep all others from another connection
            client = self._translating_errors(
                lambda: _Client(self.properties.name, self.allowlist, **self.properties.pyiceberg_properties())
            )
            require_hosts(self.allowlist, self.properties.name, client.properties)
            self._connected = client
        return client

    def _translating_errors(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call PyIceberg and translate its exceptions into `CatalogUnavailable`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # where the token server is, is for the configuration to say
                return call()
        except (RequestException, OSError) as error:
            raise self._unreachable(error) from error
        except (RESTError, ValidationError, ValueError, NotImplementedError) as error:
            text = _redacted(str(error), self._secrets()).strip()
            message = text.splitlines()[0][:300] if text else type(error).__name__
            if isinstance(error, _BUSY):
                raise CatalogUnavailable(f"{self.where} cannot answer now: {message}") from error
            raise CatalogUnavailable(
                f"{self.where} cannot be used: {message}; correct uri, warehouse and credential in "
                f"catalogs.{self.properties.name}.properties"
            ) from error

    def _failing(self, answer: RestResponse) -> CatalogUnavailable:
        later = "" if answer.wait is None else f", and asks for {answer.wait.total_seconds():.0f} s of patience"
        return CatalogUnavailable(f"{self.where} cannot answer now: {answer.message}{later}")

    def _unreachable(self, error: Exception) -> CatalogUnavailable:
        return CatalogUnavailable(f"{self.where} does not answer: {cause(error)}; {remedy(error)}")

    def _secrets(self) -> list[str]:
        extra = self.properties.extra
        secrets = [extra.get("credential", ""), *extra.get("credential", "").split(":"), extra.get("token", "")]
        return [s for s in (*secrets, *self.properties.secrets.values()) if s]


def _redacted(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        for form in (secret, repr(secret)[1:-1]):  # the latter is in the error of a header that cannot be sent
            text = text.replace(form, "***")
    return text


def cause(error: Exception) -> str:
    """Return the innermost reason of a connection error; the rest of its text names memory addresses."""
    match = _CAUSE.search(str(error))
    return match[0] if match else type(error).__name__


def _retry_after(value: str | None, now: datetime) -> timedelta | None:
    """Return the seconds that a `Retry-After` header asks for, given as seconds or as a date."""
    if not value:
        return None
    if value.strip().isdecimal():
        return timedelta(seconds=min(int(value), 3600))
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(timedelta(0), (at if at.tzinfo else at.replace(tzinfo=UTC)) - now)


class StorageCredential(msgspec.Struct, frozen=True):
    """Credentials for the files below a prefix."""

    prefix: str
    config: Mapping[str, str] = {}


class Credentials(msgspec.Struct, frozen=True, rename="kebab"):
    """The response of the credentials endpoint."""

    storage_credentials: tuple[StorageCredential, ...] = ()


class Loaded(msgspec.Struct, frozen=True, rename="kebab"):
    """A loaded or committed table; `metadata` holds the bytes of the response."""

    metadata: msgspec.Raw = msgspec.Raw()
    metadata_location: str | None = None
    config: Mapping[str, str] | None = None
    storage_credentials: tuple[StorageCredential, ...] | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_LOADED = msgspec.json.Decoder(Loaded)
_CREDENTIALS = msgspec.json.Decoder(Credentials)


def loaded(ref: TableRef, body: bytes, where: str) -> Loaded:
    """Decode a load or commit response. Raises `MetadataUnreadable`."""
    try:
        answer = _LOADED.decode(body)
    except msgspec.MsgspecError as error:
        raise MetadataUnreadable(f"{ref}: {where} answers in a way that is not the spec's ({error})") from error
    if not bytes(answer.metadata):
        raise MetadataUnreadable(f"{ref}: {where} answers without the table's metadata")
    return answer


def decode_credentials(ref: TableRef, body: bytes, where: str) -> Credentials:
    """Decode a response of the credentials endpoint. Raises `CatalogUnavailable`."""
    try:
        return _CREDENTIALS.decode(body)
    except msgspec.MsgspecError as error:
        raise CatalogUnavailable(f"{ref}: {where} lends credentials in a way that is not the spec's") from error
