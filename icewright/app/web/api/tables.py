"""Routes of tables, their knobs, snapshots and pins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BeforeValidator

from icewright.app.web.api import models
from icewright.app.web.api.paging import Cursor, Limit, decoded, encoded
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.describe import ignored_document, knobs_document
from icewright.core.errors import IcewrightError, TableNotFound
from icewright.core.operations.expire_snapshots import snapshot_expirations
from icewright.core.permissions import Action, place_of
from icewright.core.policy import MAX_PIN_AGE, Operation
from icewright.core.readers import unpinned_reads
from icewright.core.retention import kept_writer_states, writer_state_rule
from icewright.core.table import Snapshot, SnapshotHold, TableMetadata, split_name
from icewright.flow.runtime import Runtime
from icewright.flow.scopes import maintained
from icewright.ports import SnapshotPin, TableRow
from icewright.ports.views import STATES, After, TableItem, TableQuery, TableSort

router = api_router("tables", prefix="/tables")
_STATE = Literal["healthy", "due", "blocked", "changed", "new", "busy", "paused", "unreadable", "dropped"]
assert _STATE.__args__ == STATES  # type: ignore[attr-defined] # noqa: S101


def _renamed(state: object) -> object:
    """Return the current name of a state; `well`, of an earlier release, is accepted for one more."""
    return "healthy" if state == "well" else state


@router.get("", summary="List tables")
def tables(  # noqa: PLR0913, PLR0917 - a parameter for each filter
    caller: Annotated[Caller, needs(Action.TABLES_READ)],
    catalog: Annotated[models.Text | None, Query(description="only this catalog")] = None,
    namespace: Annotated[models.Text | None, Query(description="only this namespace, as in a.b")] = None,
    search: Annotated[models.Text | None, Query(description="part of the full name, in any case")] = None,
    state: Annotated[
        list[Annotated[_STATE, BeforeValidator(_renamed)]] | None, Query(description="one of these")
    ] = None,
    due: Annotated[Operation | None, Query(description="this operation is due")] = None,
    health_below: Annotated[int | None, Query(ge=0, le=101)] = None,
    sort: Annotated[TableSort, Query(description="tables without a value come last")] = TableSort.NAME,
    order: Annotated[Literal["asc", "desc"], Query()] = "asc",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> models.Tables:
    """Return a page of tables; dropped ones only when `state` names them."""
    query = TableQuery(
        catalog=catalog,
        namespace=split_name(namespace) if namespace is not None else None,
        search=search,
        states=tuple(state or ()),
        due=due,
        health_below=health_below,
        sort=sort,
        descending=order == "desc",
    )
    after = decoded(cursor)
    return caller.cached_until_change("tables", query, after, limit, work=lambda: _listed(caller, query, after, limit))


@router.get("/{name:segment}", summary="One table", responses=documented(404))
def table(name: str, caller: Annotated[Caller, needs(Action.TABLES_READ)]) -> models.TableDetail:
    """Return health and its parts, facts, verdicts, pins and the status of each operation."""
    row = caller.table(name)
    return caller.cached_until_change("detail", row, work=lambda: _detail(caller.runtime, row))


@router.get("/{name:segment}/knobs", summary="Every knob of a table, and who set it", responses=documented(404, 409))
def knobs(name: str, caller: Annotated[Caller, needs(Action.TABLES_READ)]) -> models.Knobs:
    """Return every knob of a table, with properties as the metadata has them now."""
    row = caller.table(name)
    effective = caller.runtime.policy().knobs_for(row.ref, metadata_of(caller.runtime, row))
    return models.Knobs(
        table=str(row.ref),
        knobs=[models.Knob(**knob) for knob in knobs_document(effective)],
        ignored_properties=[models.IgnoredProperty(**ignored) for ignored in ignored_document(effective.ignored)],
    )


@router.get("/{name:segment}/snapshots", summary="Snapshots and refs", responses=documented(404, 409))
def snapshots(
    name: str, caller: Annotated[Caller, needs(Action.TABLES_READ)], limit: Limit = 100, cursor: Cursor = None
) -> models.Snapshots:
    """Return a page of snapshots, newest first, and all refs and pins, from the current metadata."""
    row, after = caller.table(name), _place_after(cursor)
    metadata = metadata_of(caller.runtime, row)
    places = {_place(s): s for s in metadata.snapshots}
    following = sorted((place for place in places if after is None or place < after), reverse=True)
    newest = [places[place] for place in following[:limit]]
    holds = caller.runtime.store.pins.holds(metadata)
    expirations = _expirations(caller.runtime, row, metadata, holds)
    items = [
        models.Snapshot(
            snapshot_id=str(s.snapshot_id),
            parent_id=None if s.parent_id is None else str(s.parent_id),
            timestamp=s.timestamp,
            operation=s.operation,
            summary={str(k): str(v) for k, v in s.summary.items()},
            expires=until if isinstance(until := expirations.get(s.snapshot_id), datetime) else None,
            kept_by=until if isinstance(until, str) else None,
        )
        for s in newest
    ]
    refs = [models.Ref(name=r.name, kind=r.kind.value, snapshot_id=str(r.snapshot_id)) for r in metadata.refs]
    current = metadata.current_snapshot_id
    return models.Snapshots(
        table=str(row.ref),
        current_snapshot_id=None if current is None else str(current),
        total=len(metadata.snapshots),
        items=items,
        next=encoded(following[limit - 1]) if len(following) > limit else None,
        refs=refs,
        pins=_pins(caller.runtime, row),
        writers=_writers(caller.runtime, row, metadata),
        unpinned_reads=_unpinned_reads(caller.runtime, row, metadata, holds),
    )


@router.put(
    "/{name:segment}/pins/{reader:segment}", summary="Hold a snapshot for a reader", responses=documented(404, 409)
)
def pin(
    name: str, reader: str, body: models.PinRequest, caller: Annotated[Caller, needs(Action.TABLES_PIN)]
) -> models.Pin:
    """Keep a snapshot and all later ones from expiry; a second pin of the reader replaces the first."""
    row, runtime, snapshot_id = caller.table(name), caller.runtime, int(body.snapshot_id)
    metadata = metadata_of(runtime, row)
    if snapshot_id not in metadata.by_id:
        raise Problem(409, f"{row.ref} has no snapshot {snapshot_id}; it may have been expired already")
    now, max_hours = runtime.clock.now(), runtime.policy().knobs_for(row.ref, metadata)[MAX_PIN_AGE]
    until = now + timedelta(hours=min(body.hours or max_hours, max_hours))
    pin_ = SnapshotPin(f"reader {reader.strip()}", snapshot_id, now, until, caller.principal.name)
    if not runtime.store.pins.add(row.ref, metadata.table_uuid, pin_):
        raise Problem(409, f"a job works on {row.ref} and may be expiring the snapshot: pin it when the job is done")
    caller.audit(str(row.ref), place_of(row.ref), reader=reader, snapshot_id=str(snapshot_id), until=until.isoformat())
    return _pin(pin_)


@router.delete(
    "/{name:segment}/pins/{reader:segment}",
    summary="Release a reader's pin",
    status_code=204,
    responses=documented(404),
)
def unpin(name: str, reader: str, caller: Annotated[Caller, needs(Action.TABLES_PIN)]) -> None:
    """Release a pin; the snapshot may expire unless another pin holds it."""
    row = caller.table(name)
    if not caller.runtime.store.pins.remove(row.ref, f"reader {reader.strip()}"):
        raise Problem(404, f"{reader} holds no snapshot of {row.ref}")
    caller.audit(str(row.ref), place_of(row.ref), reader=reader, released=True)


@router.post(
    "/{name:segment}/pause",
    summary="Keep a table from being maintained by itself",
    status_code=204,
    responses=documented(404),
)
def pause(name: str, body: models.PauseRequest, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> None:
    """Stop automatic maintenance of a table, with a reason that is shown with it."""
    row = caller.table(name)
    caller.runtime.store.tables.pause(row.ref, body.reason)
    caller.audit(str(row.ref), place_of(row.ref), reason=body.reason)


@router.post(
    "/{name:segment}/resume",
    summary="Let a paused table be maintained again",
    status_code=204,
    responses=documented(404),
)
def resume(name: str, caller: Annotated[Caller, needs(Action.TABLES_PAUSE)]) -> None:
    """Resume automatic maintenance; a table that is not paused stays as it is."""
    row = caller.table(name)
    caller.runtime.store.tables.pause(row.ref, None)
    caller.audit(str(row.ref), place_of(row.ref), resumed=True)


def _place(snapshot: Snapshot) -> tuple[int, int, int]:
    """Return the place of a snapshot among those of its table, later ones higher."""
    return round(snapshot.timestamp.timestamp() * 1000), snapshot.sequence_number, snapshot.snapshot_id


def _place_after(cursor: str | None) -> tuple[int, int, int] | None:
    match decoded(cursor):
        case None:
            return None
        case (int() as milliseconds, int() as sequence, int() as snapshot_id):
            return milliseconds, sequence, snapshot_id
    raise Problem(422, "cursor: not one of this list; begin again without it")


def _detail(runtime: Runtime, row: TableRow) -> models.TableDetail:
    store = runtime.store
    item, document = store.views.table_item(row.ref), dict(store.tables.evaluation(row.ref) or {})
    if item is None:
        raise Problem(404, f"there is no table {row.ref} any more")
    snapshot = document.get("snapshot_id")
    verdicts = document.get("verdicts", []) if row.error is None and not row.dropped else []
    return models.TableDetail(
        **_document(item),
        goes_first_from=runtime.limits().goes_first_from(row.due_since, item.importance),
        table_uuid=row.table_uuid,
        location=row.location,
        metadata_location=row.metadata_location,
        snapshot_id=None if snapshot is None else str(snapshot),
        parts=document.get("parts", {}),
        facts=document.get("facts", {}),
        verdicts=[models.Verdict(**verdict) for verdict in verdicts],
        ignored_properties=[models.IgnoredProperty(**entry) for entry in document.get("ignored_properties", [])],
        maintenance={op: models.Maintenance(**asdict(s)) for op, s in maintained(runtime, row).items()},
        pins=_pins(runtime, row),
    )


def _listed(caller: Caller, query: TableQuery, after: After | None, limit: int) -> models.Tables:
    page = caller.runtime.store.views.list_tables(query, caller.visibility, after, limit)
    items = [models.Table(**_document(item)) for item in page.items]
    return models.Tables(items=items, total=page.total or 0, next=encoded(page.after))


def _document(item: TableItem) -> dict[str, Any]:
    row = item.row
    item_names = ("state", "importance", "queries_per_day", "files", "bytes", "succeeded_at", "due", "blocked")
    row_names = ("health", "due_since", "evaluated_at", "evaluate_at", "paused", "error")
    return {
        "table": str(row.ref),
        "catalog": row.ref.catalog,
        "namespace": list(row.ref.namespace),
        "name": row.ref.name,
        "job": row.job_id,
        **{name: getattr(item, name) for name in item_names},
        **{name: getattr(row, name) for name in row_names},
    }


def _writers(runtime: Runtime, row: TableRow, metadata: TableMetadata) -> list[models.WriterState]:
    """Return which snapshots expiry keeps for streaming writers; none where the table's settings cannot be read."""
    try:
        rule = writer_state_rule(runtime.policy().knobs_for(row.ref, metadata))
    except IcewrightError:
        return []
    states = kept_writer_states(metadata, rule, runtime.clock.now())
    return [models.WriterState(snapshot_id=str(state.snapshot_id), writer=state.by) for state in states]


def _unpinned_reads(
    runtime: Runtime, row: TableRow, metadata: TableMetadata, holds: Sequence[SnapshotHold]
) -> list[models.UnpinnedRead]:
    reads = unpinned_reads(metadata, runtime.store.pins.reads(row.ref), holds, runtime.clock.now())
    return [models.UnpinnedRead(snapshot_id=str(read.snapshot.snapshot_id), read_at=read.at) for read in reads]


def _expirations(
    runtime: Runtime, row: TableRow, metadata: TableMetadata, holds: Sequence[SnapshotHold]
) -> Mapping[int, datetime | str]:
    """Return the expirations of all snapshots; none where the table's settings cannot be read."""
    try:
        knobs = runtime.policy().knobs_for(row.ref, metadata)
    except IcewrightError:
        return {}
    return snapshot_expirations(metadata, holds, knobs, runtime.clock.now())


def _pins(runtime: Runtime, row: TableRow) -> list[models.Pin]:
    return [_pin(pin_) for pin_ in runtime.store.pins.list(row.ref, row.table_uuid or "")]


def _pin(pin_: SnapshotPin) -> models.Pin:
    return models.Pin(
        reader=pin_.reader,
        snapshot_id=str(pin_.snapshot_id),
        pinned_at=pin_.pinned_at,
        until=pin_.until,
        author=pin_.author,
    )


def metadata_of(runtime: Runtime, row: TableRow) -> TableMetadata:
    """Return the table's metadata as it is now. Raises `Problem` 404, and the errors of the catalog."""
    catalog = runtime.catalogs.get(row.ref.catalog)
    if catalog is None or row.dropped:
        raise Problem(404, f"{row.ref} is of a catalog that is not configured any more, or was dropped")
    try:
        return catalog.load(row.ref)
    except TableNotFound as error:
        raise Problem(404, str(error)) from error
