"""The folders outside a table's own places in which files of it lie, as they were added in place or left by a move."""

from __future__ import annotations

import polars as pl

from icewright.core.places import Spelling
from icewright.core.table import TableMetadata

_ROOT = 2  # slashes of the topmost folder of a store
_MOST = 200  # folders that are remembered of a table; of more, the folders above them are
_SPELLING = Spelling()


def outside_folders(paths: pl.Series, metadata: TableMetadata) -> tuple[str, ...]:
    """The folders, without a slash at the end, of paths in neither the table's location nor its write paths."""
    own = [place.rstrip("/") + "/" for place in (metadata.location, *metadata.write_paths)]
    beyond = pl.Series("path", paths)
    for place in own:  # as nearly all files are spelt; what is spelt otherwise is told apart below
        beyond = beyond.filter(~beyond.str.starts_with(place))
    if beyond.is_empty():
        return ()
    folders = beyond.str.extract(r"^(.*)/[^/]*$").drop_nulls().unique().sort().to_list()
    places = [_SPELLING.place(place) for place in own]
    strange = [f for f in folders if not any(_SPELLING.place(f).within(place) for place in places)]
    return _fewer(strange)


def _fewer(folders: list[str]) -> tuple[str, ...]:
    """The same folders, or where these are too many the folders above them: a wider claim, never a narrower one."""
    while len(folders) > _MOST:
        above = sorted(
            {folder.rpartition("/")[0] for folder in folders if _SPELLING.place(folder).folder.count("/") > _ROOT}
        )
        if not above or above == folders:
            break
        folders = above
    return tuple(folders)
