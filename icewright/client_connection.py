"""A connection to a service's REST API: addresses, tokens, pages, and errors as Icewright's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Self

import httpx2

from icewright import __version__
from icewright.core.errors import IcewrightError, StorageUnavailable, UsageError

_USAGE = (400, 404, 405, 409, 413, 422)
_USERINFO = re.compile("(?<=://)[^/]*@")


class Refusal(IcewrightError):
    """The service refuses the caller (401 or 403)."""


class UnknownAnswer(IcewrightError):
    """The service is of a release whose answers this one does not know, or is no Icewright service."""


class _Answer(dict[str, Any]):
    """An object of the service's JSON; to ask it for a field that it lacks raises `UnknownAnswer`."""

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownAnswer(
            f"the service's answer lacks {name}: the service is of another release than {__version__}, which asks, or "
            "it is no Icewright service"
        )


class Connection:
    """A connection to one service; close it with `close` or a `with` block."""

    def __init__(self, server: str, token: str | None = None, *, timeout: float = 60, **options: Any) -> None:
        token = (token or "").strip()  # what is read from a file ends with a newline
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the token has characters that no token has: copy it again")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        address = server.strip().rstrip("/")
        self._server = _USERINFO.sub("***@", address)  # as messages name it
        fault = UsageError(f"{self._server} is no address of a service: write one such as http://127.0.0.1:8765")
        if not address.startswith(("http://", "https://")):
            raise fault
        try:
            self._http = httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=timeout, **options)
        except httpx2.InvalidURL:
            raise fault from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    def _get(self, path: str, **params: Any) -> Any:  # noqa: ANN401 - JSON, typed by each method
        return self._document("GET", path, params=params)

    def _pages(self, path: str, params: Mapping[str, Any], limit: int = 200) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            page = self._get(path, **params, limit=limit, cursor=cursor)
            if cursor == page["next"] is not None:
                raise UnknownAnswer(f"{self._server} answers {path} without pages that end; is this Icewright?")
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def _document(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - likewise
        return self._answer(dict, method, path, **options)

    def _list(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - likewise
        return self._answer(list, method, path, **options)

    def _answer(self, kind: type, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - likewise
        response = self._request(method, path, **options)
        try:
            answer = response.json(object_hook=_Answer)
        except ValueError:
            answer = None
        if not isinstance(answer, kind):
            expected = "a document" if kind is dict else "a list"
            raise UnknownAnswer(f"{self._server} answers {path} without {expected}; is this an Icewright service?")
        return answer

    def _request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, **options: Any
    ) -> httpx2.Response:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            response = self._http.request(method, path, params=given, **options)
        except httpx2.HTTPError as error:
            raise StorageUnavailable(
                f"the service at {self._server} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if response.is_success:
            return response
        raise _error(response)


def _error(response: httpx2.Response) -> IcewrightError:
    try:
        problem = response.json()
        detail = "; ".join([problem["detail"], *map(str, problem.get("errors", []))])
    except (ValueError, KeyError, TypeError):
        detail = f"the server answered {response.status_code} without problem details; is this an Icewright service?"
    if response.status_code in (401, 403):
        return Refusal(f"{detail} (the token is taken from ICEWRIGHT_TOKEN)" if response.status_code == 401 else detail)  # noqa: PLR2004
    return UsageError(detail) if response.status_code in _USAGE else StorageUnavailable(detail)
