"""Nessie's API, version 2: references, commit logs, contents, commits and the repository's configuration."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

import msgspec
import requests

from icewright.adapters.catalogs.replies import ListingSize, PacedAdapter, read_within_limits, remedy, was_never_sent
from icewright.adapters.catalogs.staging import NeverSent
from icewright.core.errors import AccessDenied, CatalogUnavailable, CommitConflict, CommitStateUnknown
from icewright.core.vacuum import Commit, Content, GcConfig, Key, KeyChange, Reference

_TIMEOUT = (10, 120)  # seconds to connect, and to wait for an answer
_PAGE = 1000  # entries of a log or listing by one request
_FIRST_PAGE = 50  # of a log: most calls read only the newest commits
_TABLE = "ICEBERG_TABLE"
_TOKEN_REFUSED = 401
_DENIED = 403
_NOT_FOUND = 404
_CONFLICT = 409
_BUSY = 429  # the server did not even begin; by 503 a gateway may say that it has not ended in time
_REFUSALS = frozenset({400, _TOKEN_REFUSED, _DENIED, _NOT_FOUND})  # of a commit; others leave its outcome unknown


class NessieNotFound(Exception):
    """Raised when the reference or the commit does not exist (any more)."""


class _Struct(msgspec.Struct, rename="camel", gc=False):
    pass


class _Key(_Struct):
    elements: tuple[str, ...]


class _Content(_Struct):
    type: str
    id: str = ""
    metadata_location: str = ""
    snapshot_id: int | None = None


class _Operation(_Struct):
    type: str
    key: _Key
    content: _Content | None = None


class _Meta(_Struct):
    hash: str
    commit_time: str


class _LogEntry(_Struct):
    commit_meta: _Meta
    parent_commit_hash: str | None = None
    operations: tuple[_Operation, ...] | None = None


class _Log(_Struct):
    log_entries: tuple[_LogEntry, ...]
    has_more: bool
    token: str | None = None


class _Entry(_Struct):
    type: str
    name: _Key
    content: _Content | None = None


class _Entries(_Struct):
    entries: tuple[_Entry, ...]
    has_more: bool
    token: str | None = None


class _WithKey(_Struct):
    key: _Key
    content: _Content


class _Ref(_Struct):
    type: str
    hash: str
    name: str = ""  # blank for a commit that was requested by its hash alone


class _Contents(_Struct):
    contents: tuple[_WithKey, ...]
    effective_reference: _Ref | None = None


class _Refs(_Struct):
    references: tuple[_Ref, ...]
    has_more: bool
    token: str | None = None


class _One(_Struct):
    reference: _Ref


class _Committed(_Struct):
    target_branch: _Ref


class _Config(_Struct):
    type: str
    default_cutoff_policy: str | None = None
    new_files_grace_period: str | None = None
    per_ref_cutoff_policies: Sequence[object] | None = None


class _Repository(_Struct):
    configs: tuple[_Config, ...] | None = None


class _Error(_Struct):
    message: str | None = None
    error_code: str | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_DECODERS = {
    kind: msgspec.json.Decoder(kind) for kind in (_Log, _Entries, _Contents, _Refs, _One, _Committed, _Repository)
}
_ERROR = msgspec.json.Decoder(_Error)


@dataclass(frozen=True)
class NessieClient:
    """Call one Nessie server. Raises `AccessDenied`, `NessieNotFound` on a 404 of its own, or `CatalogUnavailable`."""

    catalog: str  # for messages
    api: str
    token: str | None = field(default=None, repr=False)
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False)

    def reference(self, name: str) -> Reference:
        """Return a branch or tag with the hash of its head."""
        return _reference(self._get(f"trees/{quote(name, safe='')}", {}, _One).reference)

    def references(self) -> list[Reference]:
        """Return all branches and tags, page by page."""
        pages = self._pages("trees", {}, _Refs, ListingSize.of(self.catalog))
        return [_reference(ref) for page in pages for ref in page.references]

    def log(self, hash_: str) -> Iterator[Commit]:
        """Yield the commit of this hash and its ancestors, newest first, each with its changes of tables."""
        path = f"trees/{quote('@' + hash_, safe='@')}/history"
        for page in self._pages(path, {"fetch": "ALL", "max-records": str(_FIRST_PAGE)}, _Log):
            yield from map(_commit, page.log_entries)

    def entries(self, hash_: str) -> dict[Key, Content]:
        """Return all tables at a commit."""
        path = f"trees/{quote('@' + hash_, safe='@')}/entries"
        contents_by_key: dict[Key, Content] = {}
        size = ListingSize.of(self.catalog)
        for page in self._pages(path, {"content": "true", "max-records": str(_PAGE)}, _Entries, size):
            for entry in page.entries:
                if content := _content(entry.name.elements, entry.content):
                    contents_by_key[content.key] = content
        return contents_by_key

    def contents(self, at: str, keys: Iterable[Key]) -> tuple[list[Content], str]:
        """Return the tables of these keys at `ref`, `@hash` or `ref@hash`, and the hash of that commit."""
        requested_keys = [{"elements": list(key)} for key in keys]
        if not requested_keys:
            return [], at.partition("@")[2]
        body = {"requestedKeys": requested_keys}
        answer = self._answer("POST", f"trees/{quote(at, safe='@')}/contents", json=body)
        read = self._decode(answer, _Contents)
        contents = [c for named in read.contents if (c := _content(named.key.elements, named.content))]
        return contents, read.effective_reference.hash if read.effective_reference else ""

    def commit(self, branch: Reference, content: Content, document: Mapping[str, Any], message: str) -> None:
        """Give the key of `content` the table that `document` describes, if it has the table of `branch.hash` still.

        Raises `CommitStateUnknown` when the reply was lost or is none of Nessie's. After every other error nothing
        was committed, unless a gateway sent the request twice: `CommitConflict`, and those of the class.
        """
        put = {"type": _TABLE, "id": content.content_id, **document}
        body: Any = {
            "commitMeta": {"message": message, "properties": {"application-type": "icewright"}},
            "operations": [{"type": "PUT", "key": {"elements": list(content.key)}, "content": put}],
        }
        path = f"trees/{quote(branch.name, safe='')}@{branch.hash}/history/commit"
        try:
            answer = self._session().post(f"{self.api}/{path}", json=body, timeout=_TIMEOUT)
        except (requests.RequestException, CatalogUnavailable) as error:  # the latter for a reply that is too long
            if was_never_sent(error):
                raise NeverSent(str(self._unreachable(error))) from error
            raise CommitStateUnknown(
                f"catalog {self.catalog}: the reply to a commit was lost: {_reason(error)}"
            ) from error
        if answer.status_code in (_CONFLICT, _BUSY):
            raise CommitConflict(f"catalog {self.catalog}: {_message(answer)}")
        if answer.status_code in _REFUSALS:
            self._fail(answer)
        if not answer.ok:
            raise CommitStateUnknown(f"catalog {self.catalog} answered a commit by {_message(answer)}")
        try:
            _DECODERS[_Committed].decode(answer.content)
        except msgspec.MsgspecError as error:
            raise CommitStateUnknown(f"catalog {self.catalog} answered a commit as Nessie does not: {error}") from error

    def gc_config(self) -> GcConfig | None:
        """Return the stored configuration of garbage collection; None if there is none."""
        for config in self._get("config/repository", {"type": "GARBAGE_COLLECTOR"}, _Repository).configs or ():
            if config.type == "GARBAGE_COLLECTOR":
                per_ref = bool(config.per_ref_cutoff_policies)
                return GcConfig(config.default_cutoff_policy, config.new_files_grace_period, per_ref)
        return None

    def _pages(
        self, path: str, params: Mapping[str, str], kind: type[Any], size: ListingSize | None = None
    ) -> Iterator[Any]:
        """Yield the pages, which `size` counts together where all are kept."""
        token: str | None = None
        seen: set[str] = set()
        while True:
            page = self._get(path, {**params, **({"page-token": token} if token else {})}, kind, size)
            yield page
            if not page.has_more:
                return
            if not page.token:  # a branch or commit that is left out frees its files
                raise CatalogUnavailable(f"catalog {self.catalog}: {self.api} does not say how {path} goes on")
            if page.token in seen:
                raise CatalogUnavailable(f"catalog {self.catalog}: {self.api} lists {path} in a circle")
            seen.add(page.token)
            token, params = page.token, {**params, **({"max-records": str(_PAGE)} if "max-records" in params else {})}

    def _get(self, path: str, params: Mapping[str, str], kind: type[Any], size: ListingSize | None = None) -> Any:  # noqa: ANN401 - of that kind
        hooks = {} if size is None else {"hooks": size.hooks}
        return self._decode(self._answer("GET", path, params=params, **hooks), kind)

    def _decode(self, answer: requests.Response, kind: type[Any]) -> Any:  # noqa: ANN401 - of that kind
        try:
            return _DECODERS[kind].decode(answer.content)
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(
                f"catalog {self.catalog}: {self.api} does not answer as Nessie's API v2 does ({error})"
            ) from error

    def _answer(self, method: str, path: str, **how: Any) -> requests.Response:
        try:
            answer = self._session().request(method, f"{self.api}/{path}", timeout=_TIMEOUT, **how)
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        if not answer.ok:
            self._fail(answer)
        return answer

    def _unreachable(self, error: Exception) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"catalog {self.catalog} at {self.api} does not answer: {_reason(error)}; {remedy(error)}"
        )

    def _fail(self, answer: requests.Response) -> NoReturn:
        if answer.status_code == _TOKEN_REFUSED:
            raise CatalogUnavailable(
                f"catalog {self.catalog} does not accept the token ({_message(answer)}): renew token in "
                f"catalogs.{self.catalog}.properties"
            )
        if answer.status_code == _DENIED:
            raise AccessDenied(f"catalog {self.catalog} denies access ({_message(answer)}): correct its rights")
        if answer.status_code == _NOT_FOUND and _error(answer).error_code:
            raise NessieNotFound(_message(answer))
        if answer.status_code == _NOT_FOUND:  # of a gateway, or of a server without this API
            raise CatalogUnavailable(
                f"catalog {self.catalog}: {self.api} is no API of Nessie's ({_message(answer)}): correct "
                f"catalogs.{self.catalog}.properties.uri, or mend what stands before the server"
            )
        raise CatalogUnavailable(f"catalog {self.catalog} at {self.api} answers {_message(answer)}")

    def _session(self) -> requests.Session:
        """Return this thread's session: it reuses connections, and threads share none."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, PacedAdapter())
            session.headers["Accept"] = "application/json"
            session.hooks["response"] = [partial(read_within_limits, catalog=self.catalog)]
            if self.token:
                session.headers["Authorization"] = f"Bearer {self.token}"
        return session


def _reference(ref: _Ref) -> Reference:
    return Reference(ref.name, ref.type == "BRANCH", ref.hash)


def _content(key: Key, content: _Content | None) -> Content | None:
    """Return a table; None for views, namespaces and functions."""
    if content is None or content.type != _TABLE:
        return None
    snapshot = content.snapshot_id
    return Content(content.id, key, content.metadata_location, None if snapshot in (None, -1) else snapshot)


def _commit(entry: _LogEntry) -> Commit:
    changes = [
        KeyChange(operation.key.elements, _content(operation.key.elements, operation.content))
        for operation in entry.operations or ()
        if operation.type in ("PUT", "DELETE")
    ]
    time = datetime.fromisoformat(entry.commit_meta.commit_time)
    return Commit(entry.commit_meta.hash, entry.parent_commit_hash, time, tuple(changes))


def _error(answer: requests.Response) -> _Error:
    try:
        return _ERROR.decode(answer.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Error()


def _message(answer: requests.Response) -> str:
    return f"{answer.status_code} {_error(answer).message or answer.reason}"


def _reason(error: Exception) -> str:
    """Return the class of a failure, without addresses, which may hold secrets."""
    return type(error).__name__
