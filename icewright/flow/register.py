"""Registration of a table that no catalog knows, or whose current metadata file is lost, from its files alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from icewright.core.errors import Refused, UsageError
from icewright.core.integrity import CheckLevel, IntegrityReport
from icewright.core.paths import named_place
from icewright.core.places import Spelling
from icewright.core.registering import RegisterResult, newest, version_number
from icewright.core.table import TableMetadata, TableRef
from icewright.core.words import count, in_shell
from icewright.flow.runtime import Runtime
from icewright.ports import Catalog, Pointer, Registering, Registration
from icewright.ports.work import catalog_context

_SPELLING = Spelling()


def register(
    runtime: Runtime, ref: TableRef, place: str, *, dry_run: bool = False, replace_lost: bool = False
) -> RegisterResult:
    """Register a table by the metadata file that `place` names, or by the newest one in the folder `place`.

    `replace_lost` allows replacing a table of this name whose current metadata file is lost.
    Raises `Refused` where a catalog names the table or its name already, the newest file is not certain, or a file that
    the current snapshot needs is at fault.
    """
    with catalog_context(ref.catalog):
        return _register(runtime, ref, place, dry_run=dry_run, replace_lost=replace_lost)


def _register(runtime: Runtime, ref: TableRef, place: str, *, dry_run: bool, replace_lost: bool) -> RegisterResult:
    target, catalog, place = require_registering(runtime, ref), runtime.catalog(ref), named_place(place)
    lost = _lost_metadata_file(runtime, ref, place)
    metadata = _metadata_at(runtime, catalog, ref, place)
    result = _checked(runtime, metadata, lost, dry_run=dry_run)
    if dry_run:
        return result
    if lost is not None and not replace_lost:
        raise Refused(
            f"{ref} is in its catalog, and its metadata file {lost} is lost: --replace-lost registers it again"
        )
    target.register(ref, result.metadata_location, replace=lost is not None)
    now = catalog.load(ref)
    if now.metadata_location != result.metadata_location:
        raise Refused(f"{ref} is at {now.metadata_location}: somebody else registered it or has committed already")
    details = {"summary": str(ref), "metadata_location": now.metadata_location, "replaced": lost}  # not listed yet
    runtime.store.activity.record("registered", runtime.clock.now(), ref, **details)
    return result


def _checked(runtime: Runtime, metadata: TableMetadata, lost: str | None, *, dry_run: bool) -> RegisterResult:
    """Return what would be registered. Raises `Refused` where its files were moved or are at fault, or it is known."""
    folder = _SPELLING.place(metadata.metadata_folder)
    if not any(folder.may_lie_in(_SPELLING.place(root)) for root in metadata.roots):
        raise Refused(
            f"{metadata.metadata_location} is of a table at {metadata.location}: its files were moved without their "
            "paths; put them back there, or copy the table by `icewright copy`"
        )
    _require_unknown(runtime, metadata, lost)
    report = runtime.engine.check_files(metadata, CheckLevel.ENTRIES)
    _require_whole(metadata, report)
    notes = [f"{count(len(report.faults), 'fault')} in earlier snapshots: check the table"] if report.faults else []
    if lost is not None:
        notes.append(f"what was committed since {metadata.last_updated:%Y-%m-%d %H:%M:%S} UTC is not in the table")
    return RegisterResult(
        ref=metadata.ref,
        metadata_location=metadata.metadata_location,
        table_uuid=metadata.table_uuid,
        snapshots=len(metadata.snapshots),
        files=report.files,
        replaced=lost,
        notes=tuple(notes),
        dry_run=dry_run,
    )


def require_registering(runtime: Runtime, ref: TableRef) -> Registering:
    """Return the catalog of the table as one that registers metadata files.

    Raises `Refused` when it has no such namespace, and `UsageError` when it registers no metadata files.
    """
    catalog = runtime.catalog(ref)
    if not isinstance(catalog, Registering):
        raise UsageError(f"catalog {ref.catalog} takes no tables by their metadata files")
    catalog.require_namespace(ref)
    return catalog


def _lost_metadata_file(runtime: Runtime, ref: TableRef, place: str) -> str | None:
    """Return the lost metadata file of the table with this name, None without such a table.

    Raises `Refused` if the file exists, or if it lies in another place.
    """
    named = next((pointer.metadata_location for pointer in runtime.catalog(ref).pointers() if pointer.ref == ref), None)
    if named is None:
        return None
    if runtime.files.size(named) is not None or not _SPELLING.place(named).may_lie_in(_SPELLING.place(_folder(place))):
        raise Refused(f"{ref} exists already, at {named}: name another table")
    return named


def _folder(place: str) -> str:
    return place if version_number(place) is None else place.rpartition("/")[0]


def _metadata_at(runtime: Runtime, catalog: Catalog, ref: TableRef, place: str) -> TableMetadata:
    """Return the metadata of the file that `place` names, or of the newest file in the folder."""

    def read(path: str) -> TableMetadata:
        return catalog.neighbour(Pointer(ref, path))

    if version_number(place) is not None:
        return read(place)
    paths = (path for batch in runtime.files.listing(place) for path in batch.column("path").to_pylist())
    return newest(place, paths, read)


def named_tables(runtime: Runtime) -> Iterator[tuple[Pointer, Sequence[Registration]]]:
    """Yield each table that a configured catalog names, with the registrations under its name, earlier ones too."""
    known: dict[TableRef, list[Registration]] = {}
    for registration in runtime.store.registrations.list():
        known.setdefault(registration.ref, []).append(registration)
    for catalog in runtime.catalogs.values():
        yield from ((pointer, known.get(pointer.ref, [])) for pointer in catalog.pointers())


def _require_whole(metadata: TableMetadata, report: IntegrityReport) -> None:
    """Raise `Refused` when a file that the current snapshot needs is at fault."""
    current = [fault for fault in report.faults if metadata.current_snapshot_id in fault.snapshot_ids]
    if current:
        raise Refused(
            f"{metadata.metadata_location}: {count(len(current), 'file')} of the current snapshot at fault, such as "
            f"{current[0].path} ({current[0].detail}): name an earlier metadata file"
        )


def _require_unknown(runtime: Runtime, metadata: TableMetadata, lost: str | None) -> None:
    """Raise `Refused` if a catalog names any version of the table, or another table whose location overlaps."""
    here, own = _SPELLING.place(metadata.location), {metadata.metadata_location, *metadata.metadata_log}
    for pointer, known in named_tables(runtime):
        at = pointer.metadata_location
        if at == lost:
            continue
        same = at in own or (
            any(registration.table_uuid == metadata.table_uuid for registration in known)
            and runtime.catalogs[pointer.ref.catalog].load(pointer.ref).table_uuid == metadata.table_uuid
        )
        if same or _SPELLING.place(at).may_lie_in(here):
            raise Refused(
                f"{metadata.location} is the place of {pointer.ref}: of two names of a table each deletes what the "
                f"other needs; `icewright copy {in_shell(pointer.ref)}` makes a table of its own"
            )
