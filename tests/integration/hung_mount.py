"""Run `icewright` with reads of some files that hang in the kernel, as on a mount whose server is gone.

HUNG_READS names work and a part of a path, such as `job /ops/metrics/,evaluation /ops/unread/`; a blank name of work
stands for every thread. Such a read opens a FIFO instead, which blocks until somebody writes to it; where there is no
FIFO nothing hangs. `http` alone stands for the event loop of the web server, which hangs at the next connection.
An interrupted command waits STOP_SECONDS for what hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

from icewright.adapters.files.local import LocalStorage
from icewright.app import interrupts
from icewright.app.cli import main
from icewright.app.web import running
from icewright.app.web.middlewares import network_of
from icewright.ports import SizeLimit
from icewright.ports.work import current_work

_hung = [read.partition(" ")[::2] for read in os.environ["HUNG_READS"].split(",")]
_fifo = Path(os.environ["HUNG_FIFO"])
_read = LocalStorage.read


def _hanging_connection(host: str) -> str:
    if _fifo.exists() and ("http", "") in _hung:
        _fifo.read_bytes()
    return network_of(host)


def _hanging_read(self: LocalStorage, path: str, limit: SizeLimit | None = None) -> bytes:
    work = current_work()
    name = "" if work is None else work.name
    if _fifo.exists() and any(kind in name and part in path for kind, part in _hung):
        _fifo.read_bytes()
    return _read(self, path, limit)


LocalStorage.read = _hanging_read  # type: ignore[method-assign]
interrupts.STOP_SECONDS = float(os.environ.get("STOP_SECONDS", "10"))
running.network_of = _hanging_connection  # type: ignore[attr-defined]
main()
