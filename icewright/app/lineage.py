"""OpenLineage: each job is told as a run with its table. A receiver that is slow, away or wrong harms no job."""

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
from icewright.core.errors import ConfigError, IcewrightError
from icewright.core.runs import JobState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.runtime import Listener, Runtime

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, RunEvent
    from openlineage.client.facet_v2 import schema_dataset

PRODUCER = f"https://pypi.org/project/icewright/{__version__}"
WAITING = 1000  # events that may wait for the receiver; what comes then is dropped
LAST_WORDS_SECONDS = 10.0  # how long the end of a process waits for the receiver
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


def opened(section: OpenLineageSection, folder: Path) -> Send:
    """Return how to send an event. A relative file lies in the folder. Raises `ConfigError` without the client."""
    try:
        from openlineage.client.transport.file import FileConfig, FileTransport  # noqa: PLC0415 - an extra
        from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError([f"openlineage: it needs more packages: install icewright[lineage] ({error})"]) from error
    if section.file is not None:
        path = folder / Path(section.file).expanduser()
        return FileTransport(FileConfig(log_file_path=str(path), append=True)).emit
    config = HttpConfig(url=f"{section.url}/", endpoint=section.endpoint.lstrip("/"))
    config.retry = {**config.retry, "total": 2}
    if section.api_key:
        config.auth = ApiKeyTokenProvider({"api_key": section.api_key})
    return HttpTransport(config).emit


class LineageSender:
    """Makes run events of what is told, and sends them from a thread of its own."""

    def __init__(
        self,
        namespace: str,
        send: Send,
        load: Load,
        tell: Listener,
        now: Callable[[], datetime],
        waiting: int = WAITING,
    ) -> None:
        self._namespace, self._send, self._load, self._tell, self._now = namespace, send, load, tell, now
        self._queue: queue.Queue[tuple[str, Mapping[str, Any], datetime] | None] = queue.Queue(waiting)
        self._well = True
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def hear(self, kind: str, details: Mapping[str, Any]) -> None:
        """Whatever is told; never waits, and never fails."""
        state = {"job_started": "START", "job_crashed": "FAIL"}.get(kind)
        if kind == "job_finished":
            state = _ENDED.get(str(details.get("state")))
        if state is None:
            return
        try:
            self._queue.put_nowait((state, details, self._now()))
        except queue.Full:
            self._failed(f"{self._queue.maxsize} events wait already: this one of {details.get('job_id')} is dropped")

    def close(self, seconds: float = LAST_WORDS_SECONDS) -> None:
        """Send what waits, for so long."""
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _run(self) -> None:
        while (heard := self._queue.get()) is not None:
            state, details, at = heard
            try:
                self._send(self._event(state, details, at))
            except Exception as error:  # noqa: BLE001 - whatever the receiver does, jobs go on
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._well = True

    def _failed(self, error: str) -> None:
        """Said once, until an event gets through again."""
        if self._well:
            self._well = False
            self._tell("lineage_not_sent", {"error": error})

    def _event(self, state: str, details: Mapping[str, Any], at: datetime) -> RunEvent:
        from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState  # noqa: PLC0415 - an extra
        from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run  # noqa: PLC0415

        table = TableRef.parse(str(details["table"]))
        engine = processing_engine_run.ProcessingEngineRunFacet(__version__, "Icewright", producer=PRODUCER)
        facets: dict[str, Any] = {"processing_engine": engine}
        if state in ("FAIL", "ABORT"):
            said = str(details.get("summary") or details.get("error") or details.get("state"))
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(said, "Python", producer=PRODUCER)
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
        """The table by its location, as Spark's events name it, and its name; by that alone if it cannot be read."""
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
    """Return the columns, structures with what they hold."""
    from openlineage.client.facet_v2 import schema_dataset  # noqa: PLC0415 - an extra

    made = []
    for field in schema.get("fields", ()):
        kind = field["type"]
        inner = _fields(kind) if isinstance(kind, Mapping) and kind.get("type") == "struct" else None
        said = kind if isinstance(kind, str) else str(kind.get("type"))
        made.append(schema_dataset.SchemaDatasetFacetFields(field["name"], said, field.get("doc"), fields=inner))
    return made


@contextmanager
def heard(section: OpenLineageSection | None, folder: Path, runtime: Runtime, tell: Listener) -> Iterator[Listener]:
    """A listener that tells on, and sends run events too where the configuration names a receiver."""
    if section is None:
        yield tell
        return
    send = opened(section, folder)
    lineage = LineageSender(
        section.namespace, send, lambda ref: runtime.catalog(ref).load(ref), tell, runtime.clock.now
    )

    def both(kind: str, details: Mapping[str, Any]) -> None:
        tell(kind, details)
        lineage.hear(kind, details)

    try:
        yield both
    finally:
        lineage.close()
