"""OpenLineage: each job becomes a run event with its table. A slow, absent or faulty receiver affects no job."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

from icewright import __version__
from icewright.app.sections import OpenLineageSection
from icewright.core.errors import IcewrightError, requires_extra
from icewright.core.runs import JobState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.runtime import Listener, Runtime

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, RunEvent
    from openlineage.client.facet_v2 import schema_dataset

PRODUCER = f"https://pypi.org/project/icewright/{__version__}"
WAITING = 1000  # events that may wait for the receiver; further ones are dropped
CLOSE_SECONDS = 10.0  # how long a process that ends waits for the receiver
_ENDED: Mapping[str, str] = {
    JobState.SUCCEEDED: "COMPLETE",
    JobState.SKIPPED: "COMPLETE",
    JobState.PARTIAL: "FAIL",
    JobState.FAILED: "FAIL",
    JobState.CANCELLED: "ABORT",
    JobState.INTERRUPTED: "ABORT",
}

Load = Callable[[TableRef], TableMetadata]
Send = Callable[["RunEvent"], Any]


def open_transport(section: OpenLineageSection, folder: Path) -> Send:
    """Return the function that sends an event; a relative file is relative to the folder. Raises `UsageError`."""
    with requires_extra("lineage", "openlineage"):
        from openlineage.client.transport.file import FileConfig, FileTransport  # noqa: PLC0415 - an extra
        from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport  # noqa: PLC0415
    if section.file is not None:
        path = folder / Path(section.file).expanduser()
        return FileTransport(FileConfig(log_file_path=str(path), append=True)).emit
    config = HttpConfig(url=f"{section.url}/", endpoint=section.endpoint.lstrip("/"))
    config.retry = {**config.retry, "total": 2}
    if section.api_key:
        config.auth = ApiKeyTokenProvider({"api_key": section.api_key})
    return HttpTransport(config).emit


class LineageSender:
    """Turns events of jobs into run events, and sends them from a thread of its own."""

    def __init__(
        self,
        namespace: str,
        send: Send,
        load: Load,
        emit: Listener,
        now: Callable[[], datetime],
        waiting: int = WAITING,
    ) -> None:
        self._namespace, self._send, self._load, self._emit, self._now = namespace, send, load, emit, now
        self._queue: queue.Queue[tuple[str, Mapping[str, Any], datetime] | None] = queue.Queue(waiting)
        self._sending = True
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def listen(self, kind: str, details: Mapping[str, Any]) -> None:
        """Queue the run event of a job's event; never blocks and never raises."""
        state = {"job_started": "START", "job_crashed": "FAIL"}.get(kind)
        if kind == "job_finished":
            state = _ENDED.get(str(details.get("state")))
        if state is None:
            return
        try:
            self._queue.put_nowait((state, details, self._now()))
        except queue.Full:
            self._failed(f"{self._queue.maxsize} events wait already: this one of {details.get('job_id')} is dropped")

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the queued events are sent, for at most so many seconds."""
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            state, details, at = queued
            try:
                self._send(self._event(state, details, at))
            except Exception as error:  # noqa: BLE001 - an unavailable receiver stops no job
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._sending = True

    def _failed(self, error: str) -> None:
        """Report a failure once, until an event is sent again."""
        if self._sending:
            self._sending = False
            self._emit("lineage_not_sent", {"error": error})

    def _event(self, state: str, details: Mapping[str, Any], at: datetime) -> RunEvent:
        from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState  # noqa: PLC0415 - an extra
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run  # noqa: PLC0415

        table = TableRef.parse(str(details["table"]))
        engine = processing_engine_run.ProcessingEngineRunFacet(__version__, "Icewright", producer=PRODUCER)
        facets: dict[str, Any] = {"processing_engine": engine}
        if state in ("FAIL", "ABORT"):
            message = str(details.get("summary") or details.get("error") or details.get("state"))
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "Python", producer=PRODUCER)
        kind = job_type_job.JobTypeJobFacet("BATCH", "ICEWRIGHT", "MAINTENANCE", producer=PRODUCER)
        source = self._dataset(table)
        return RunEvent(
            eventTime=at.isoformat(),
            eventType=RunState[state],
            producer=PRODUCER,
            run=Run(str(uuid5(NAMESPACE_URL, f"{PRODUCER}/{details['job_id']}")), facets),
            job=Job(self._namespace, f"maintain.{table}", {"jobType": kind}),
            inputs=[source],
            outputs=[OutputDataset(source.namespace, source.name, facets=source.facets)],
        )

    def _dataset(self, table: TableRef) -> InputDataset:
        """Return the table's dataset, named by its location as in Spark's events; by its name if unreadable."""
        from openlineage.client.event_v2 import InputDataset  # noqa: PLC0415 - an extra
        from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset, symlinks_dataset  # noqa: PLC0415

        try:
            metadata = self._load(table)
        except IcewrightError:
            return InputDataset(table.catalog, ".".join(table.parts[1:]))
        place = urlsplit(metadata.location)
        namespace = f"{place.scheme}://{place.netloc}" if place.netloc else place.scheme or "file"
        name = symlinks_dataset.Identifier(table.catalog, ".".join(table.parts[1:]), "TABLE")
        facets: dict[str, Any] = {
            "schema": schema_dataset.SchemaDatasetFacet(_fields(metadata.schema), producer=PRODUCER),
            "symlinks": symlinks_dataset.SymlinksDatasetFacet([name], producer=PRODUCER),
        }
        if (snapshot := metadata.current_snapshot_id) is not None:
            version = dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshot), producer=PRODUCER)
            facets["version"] = version
        return InputDataset(namespace, place.path.strip("/") if place.netloc else place.path, facets=facets)


def _fields(schema: Mapping[str, Any]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Return the fields of a schema, with the inner fields of structs."""
    from openlineage.client.facet_v2 import schema_dataset  # noqa: PLC0415 - an extra

    fields = []
    for field in schema.get("fields", ()):
        kind = field["type"]
        inner = _fields(kind) if isinstance(kind, Mapping) and kind.get("type") == "struct" else None
        name = kind if isinstance(kind, str) else str(kind.get("type"))
        fields.append(schema_dataset.SchemaDatasetFacetFields(field["name"], name, field.get("doc"), fields=inner))
    return fields


@contextmanager
def with_lineage(
    section: OpenLineageSection | None, folder: Path, runtime: Runtime, emit: Listener
) -> Iterator[Listener]:
    """Yield a listener that forwards events and, if the configuration names a receiver, sends run events."""
    if section is None:
        yield emit
        return
    send = open_transport(section, folder)
    lineage = LineageSender(
        section.namespace, send, lambda ref: runtime.catalog(ref).load(ref), emit, runtime.clock.now
    )

    def emit_both(kind: str, details: Mapping[str, Any]) -> None:
        emit(kind, details)
        lineage.listen(kind, details)

    try:
        yield emit_both
    finally:
        lineage.close()
