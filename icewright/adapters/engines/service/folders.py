"""Folders of storage as frames of the files in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import polars as pl

from icewright.core.errors import FolderMissing
from icewright.ports import Storage


def files_below(files: Storage, folder: str) -> Iterator[pl.DataFrame]:
    """Yield the files below a folder chunk by chunk (`path`, `bytes`, `modified`); none where there is no such folder.

    A file system lacks the folder of a table whose files all lie elsewhere.
    """
    with suppress(FolderMissing):
        for batch in files.listing(folder):
            yield pl.DataFrame(pl.from_arrow(batch))
