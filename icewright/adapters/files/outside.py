"""The folders outside a table's own places in which files of it lie, as they were added in place or left by a move."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from icewright.core.places import Spelling
from icewright.core.table import TableMetadata

_ROOT = 2  # slashes of the topmost folder of a store
_MAX_FOLDERS = 200  # folders stored for a table; of more folders, their parents are stored
_SPELLING = Spelling()


def outside_folders(paths: pl.Series, metadata: TableMetadata, canonical: Callable[[str], str]) -> tuple[str, ...]:
    """Return the folders, without a slash at the end, of paths in neither the table's location nor its write paths.

    `canonical` resolves links: a link below the location may lead into another table's folder.
    """
    folders = paths.str.extract(r"^(.*)/[^/]*$").drop_nulls().unique().sort()
    real = {folder: canonical(folder) for folder in folders}
    own = [canonical(place).rstrip("/") + "/" for place in (metadata.location, *metadata.write_paths)]
    # nearly all files are spelt as the places are
    beyond = [folder for folder, leads in real.items() if not any(f"{leads}/".startswith(place) for place in own)]
    places = [_SPELLING.place(place) for place in own]
    strange = [f for f in beyond if not any(_SPELLING.place(real[f]).within(place) for place in places)]
    return _merged_upwards(strange)


def _merged_upwards(folders: list[str]) -> tuple[str, ...]:
    """Return the folders, or their parents where there are too many: the claim gets wider, never narrower."""
    while len(folders) > _MAX_FOLDERS:
        above = sorted(
            {folder.rpartition("/")[0] for folder in folders if _SPELLING.place(folder).folder.count("/") > _ROOT}
        )
        if not above or above == folders:
            break
        folders = above
    return tuple(folders)
