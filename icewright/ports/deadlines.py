"""Calls with a deadline, as no library of catalogs ends a call that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from icewright.core.errors import CatalogUnavailable

T = TypeVar("T")


@dataclass
class CatalogCalls:
    """Calls catalogs in threads, and waits for their answers for a limited time. Thread-safe.

    While a call is overdue, further ones of its catalog fail at once, so that threads that hang do not pile up.
    """

    limits: Mapping[str, timedelta]  # by catalog
    _overdue: dict[str, threading.Thread] = field(default_factory=dict, init=False)

    def ask(self, catalog: str, call: Callable[[], T]) -> T:
        """Return the answer of a catalog, or raise what the call raises.

        Raises `CatalogUnavailable` when the catalog does not answer in time.
        """
        if catalog in self._overdue and self._overdue[catalog].is_alive():
            raise CatalogUnavailable(f"catalog {catalog} has not answered an earlier request yet", catalog)
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again for the caller
                answer.set_exception(error)

        thread = threading.Thread(target=run, name=f"ask {catalog}", daemon=True)
        thread.start()
        limit = self.limits[catalog].total_seconds()
        try:
            return answer.result(limit)
        except TimeoutError:
            if answer.done():  # the call's own
                raise
            self._overdue[catalog] = thread
            message = f"catalog {catalog} did not answer within {limit:g} s (detect.timeout_seconds)"
            raise CatalogUnavailable(message, catalog) from None
