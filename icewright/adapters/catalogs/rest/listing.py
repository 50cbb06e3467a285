"""List all tables of a REST catalog, page by page and namespace by namespace. A failure fails the whole listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from icewright.adapters.catalogs.replies import ListingSize
from icewright.adapters.catalogs.rest.client import PARALLEL, RestClient, RestResponse
from icewright.core.errors import CatalogUnavailable

Namespace = tuple[str, ...]
_Page = TypeVar("_Page", "_Namespaces", "_Tables")
_NO_LEVELS_BELOW = frozenset({400, 405, 406, 501})  # how servers say that their namespaces have one level
_OK, _NOT_FOUND = 200, 404
_VAIN_PAGES = 100  # in a row that bring nothing new, as of a server that hides what may not be seen


class _Table(msgspec.Struct, frozen=True):
    namespace: tuple[str, ...]
    name: str


class _Namespaces(msgspec.Struct, frozen=True, rename="kebab"):
    items: tuple[tuple[str, ...], ...] = msgspec.field(name="namespaces")
    next_page_token: str | None = None


class _Tables(msgspec.Struct, frozen=True, rename="kebab"):
    items: tuple[_Table, ...] = msgspec.field(name="identifiers")
    next_page_token: str | None = None


# made at once: threads that are the first to decode a struct at the same time crash in msgspec
_NAMESPACES, _TABLES = msgspec.json.Decoder(_Namespaces), msgspec.json.Decoder(_Tables)


class _NamespaceMissing(Exception):
    """Raised when the server says that the namespace does not exist."""


@dataclass(frozen=True)
class TableListing:
    """List the tables of one server, several namespaces in parallel."""

    client: RestClient
    size: ListingSize

    def tables(self) -> list[tuple[str, ...]]:
        """Return the namespace and name of every table, sorted."""
        names: list[tuple[str, ...]] = []
        level = self._below(())
        with ThreadPoolExecutor(PARALLEL) as pool:
            while level:
                names += [table for tables in pool.map(self._tables, level) for table in tables]
                level = sorted({child for children in pool.map(self._children, level) for child in children})
        return sorted(set(names))

    def _tables(self, namespace: Namespace) -> list[tuple[str, ...]]:
        path = f"namespaces/{self.client.namespace(*namespace)}/tables"
        try:
            return [(*t.namespace, t.name) for page in self._pages(path, {}, _TABLES) for t in page.items]
        except _NamespaceMissing:
            self._require_missing(namespace)
            return []

    def _children(self, namespace: Namespace) -> list[Namespace]:
        try:
            return self._below(namespace)
        except _NamespaceMissing:
            self._require_missing(namespace)
            return []

    def _below(self, parent: Namespace) -> list[Namespace]:
        """Return the child namespaces; a server without nested namespaces has none."""
        # the session quotes the parameter again, so its levels are joined unquoted
        params = {"parent": unquote(self.client.namespace(*parent))} if parent else {}
        namespaces = {n for page in self._pages("namespaces", params, _NAMESPACES) for n in page.items}
        return sorted(n for n in namespaces if len(n) == len(parent) + 1 and n[: len(parent)] == parent)

    def _require_missing(self, namespace: Namespace) -> None:
        """Raise `CatalogUnavailable` if the server still lists the namespace that it did not find."""
        try:
            still_listed = namespace in self._below(namespace[:-1])
        except _NamespaceMissing:
            return
        if still_listed:
            raise CatalogUnavailable(
                f"{self.client.where} lists namespace {'.'.join(namespace)} and does not find it: nothing is concluded"
            )

    def _pages(self, path: str, params: Mapping[str, str], pages: msgspec.json.Decoder[_Page]) -> Iterable[_Page]:
        size = self.client.config.get("rest-page-size")
        page_params = {**params, **({"pageSize": str(size), "pageToken": ""} if size else {})}
        seen: set[_Table | Namespace] = set()
        seen_tokens: set[str] = set()
        vain = 0
        while True:
            page = self._page(path, page_params, pages)
            if page is None:
                return
            yield page
            token, known = page.next_page_token, len(seen)
            if not token:
                return
            seen.update(page.items)
            vain = 0 if len(seen) > known else vain + 1
            if token in seen_tokens or vain == _VAIN_PAGES:
                raise CatalogUnavailable(
                    f"{self.client.where} lists {path} in a circle: page {token} brings nothing new"
                )
            seen_tokens.add(token)
            page_params = {**page_params, "pageToken": token}

    def _page(self, path: str, params: Mapping[str, str], pages: msgspec.json.Decoder[_Page]) -> _Page | None:
        """Return a page; None where the server's namespaces have one level."""
        answer = self.client.get(path, params, size=self.size)
        if answer.status == _NOT_FOUND and (path != "namespaces" or "parent" in params):
            raise _NamespaceMissing
        if answer.status in _NO_LEVELS_BELOW and "parent" in params and not params.get("pageToken"):
            return None
        if answer.status != _OK:
            raise CatalogUnavailable(f"{self.client.where} did not list {path}: {answer.message}{_remedy(answer)}")
        try:
            return pages.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(f"{self.client.where} listed {path} in a way that is not the spec's") from error


def _remedy(answer: RestResponse) -> str:
    forbidden = 403
    return "; grant the principal the right to list namespaces and tables" if answer.status == forbidden else ""
