"""Policies that an Apache Polaris server has for the tables of a catalog, cached."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import unquote

import msgspec

from icewright.adapters.catalogs.replies import ListingSize
from icewright.adapters.catalogs.rest.client import RestClient, RestResponse
from icewright.core.errors import CatalogUnavailable
from icewright.core.polaris import PolarisPolicy, Served, served
from icewright.core.table import TableRef
from icewright.ports import Clock

ENDPOINT = "GET /polaris/v1/{prefix}/applicable-policies"
_CACHE_TIME = timedelta(minutes=1)  # a job needs the same policies many times
_OK = 200


class _Policy(msgspec.Struct, frozen=True, rename="kebab"):
    policy_type: str
    name: str
    content: str | None = None
    inherited: bool = False


class _Nested(msgspec.Struct, frozen=True):
    """A policy inside an object of its own, as in drafts of the API before its first release."""

    policy: _Policy
    inherited: bool = False


class _Page(msgspec.Struct, frozen=True, rename="kebab"):
    applicable_policies: tuple[msgspec.Raw, ...] = ()
    next_page_token: str | None = None


_PAGES = msgspec.json.Decoder(_Page)
_POLICIES, _NESTED = msgspec.json.Decoder(_Policy), msgspec.json.Decoder(_Nested)


@dataclass(frozen=True)
class _CachedPolicies:
    policies: Sequence[PolarisPolicy]
    at: datetime


@dataclass
class RestPolicies:
    """Read the policies of one catalog's tables and cache them. Thread-safe."""

    client: RestClient
    clock: Clock
    _cache: dict[TableRef, _CachedPolicies] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def are_offered(self) -> bool:
        """Return whether the server's configuration offers policies."""
        return self.client.offers(ENDPOINT)

    def of(self, ref: TableRef) -> Served:
        """Return the table's policies, or the cached ones while the server does not answer.

        Raises `CatalogUnavailable` when none are cached.
        """
        now = self.clock.now()
        with self._lock:
            cached = self._cache.get(ref)
        if cached is not None and now - cached.at < _CACHE_TIME:
            return served(cached.policies, now)
        try:
            policies = self._fetch(ref)
        except CatalogUnavailable as error:
            if cached is None:
                raise CatalogUnavailable(
                    f"{ref}: its policies cannot be read ({error}): nothing is done to the table until they can, or "
                    f"catalogs.{ref.catalog}.policies is none"
                ) from error
            return served(cached.policies, now, f"as of {cached.at:%Y-%m-%d %H:%M} UTC, the server does not answer")
        with self._lock:
            self._cache[ref] = _CachedPolicies(policies, now)
        return served(policies, now)

    def _fetch(self, ref: TableRef) -> list[PolarisPolicy]:
        prefix = str(self.client.config.get("prefix") or "")
        path = f"/polaris/v1/{prefix}/applicable-policies" if prefix else "/polaris/v1/applicable-policies"
        namespace = unquote(self.client.namespace(*ref.namespace))
        params = {"namespace": namespace, "target-name": ref.name}
        policies: list[PolarisPolicy] = []
        seen_tokens: set[str] = set()
        size = ListingSize.of(ref.catalog)
        while True:
            page = self._page(self.client.get(path, params, size=size))
            policies += map(_policy, page.applicable_policies)
            token = page.next_page_token
            if not token:
                return policies
            if token in seen_tokens:
                raise CatalogUnavailable(f"{self.client.where} lists policies in a circle: page {token} came twice")
            seen_tokens.add(token)
            params = {**params, "page-token": token}

    def _page(self, answer: RestResponse) -> _Page:
        if answer.status != _OK:
            raise CatalogUnavailable(f"{self.client.where} did not return its policies: {answer.message}")
        try:
            return _PAGES.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(f"{self.client.where} told policies in a way that is not Polaris's") from error


def _policy(raw: msgspec.Raw) -> PolarisPolicy:
    """Return one policy, decoded from either shape of the API."""
    try:
        policy = _POLICIES.decode(raw)
        inherited = policy.inherited
    except msgspec.MsgspecError:
        try:
            nested = _NESTED.decode(raw)
        except msgspec.MsgspecError as error:
            raise CatalogUnavailable(f"a policy is told in a way that is not Polaris's ({error})") from error
        policy, inherited = nested.policy, nested.inherited
    try:
        content: object = msgspec.json.decode(policy.content or "")
    except msgspec.MsgspecError:
        content = None
    return PolarisPolicy(policy.policy_type, policy.name, content, inherited)
