"""Inventories of object stores (S3 Inventory and the like) read in place of a listing.

An inventory is Parquet or CSV, gzipped or not, one file or a folder of files. Columns are found by their names: `key`,
`size`, and `last_modified` or `last_modified_date`. A CSV without a header has the columns of S3: bucket, key
(percent-encoded), size, date.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote_plus

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from icewright.adapters.files.storage import LISTED, UNNAMEABLE, displayed
from icewright.core.errors import MetadataUnreadable, Refused
from icewright.core.paths import split
from icewright.ports import Storage, ignore

_ENDINGS = (".parquet", ".csv", ".csv.gz")
_S3_COLUMNS = ("bucket", "key", "size", "last_modified_date")
_TIMES = ("last_modified", "last_modified_date", "lastmodified", "lastmodifieddate")


def read_inventory(
    storage: Storage, path: str, location: str, unnamed: Callable[[str], None] = ignore
) -> Iterator[pa.RecordBatch]:
    """Yield the files below `location`, spelt as it is; keys that no object can be asked for by go to `unnamed`.

    Raises `MetadataUnreadable` when there is no inventory at `path`, or a column is missing, and `Refused` when no file
    is below `location`: a table has its metadata, so the inventory is of another place, or older than the table.
    """
    place = split(location)
    prefix = place.path.strip("/") + "/"
    root = location[: len(location) - len(place.path.lstrip("/"))].rstrip("/")
    has_table = False
    for file in _files(storage, path):
        for batch in _batches(storage, file):
            frame = _columns(batch, file)
            here = pl.col("bucket").is_null() | (pl.col("bucket") == place.authority)
            own = frame.filter(here & pl.col("key").str.starts_with(prefix))
            has_table = has_table or own.height > 0
            unnameable = pl.col("key").str.contains(UNNAMEABLE)
            for key in own.filter(unnameable)["key"]:
                unnamed(displayed(f"{root}/{key}"))
            files = own.filter(~unnameable).select(
                path=pl.concat_str(pl.lit(f"{root}/"), "key"),
                bytes=pl.col("bytes"),
                modified=pl.col("modified").dt.truncate("1s"),  # the precision of the store's own listings
            )
            yield from files.to_arrow().cast(LISTED).to_batches()
    if not has_table:
        reason = f"{path} has no file below {location}: name an inventory of this place that was made since then"
        raise Refused(reason, "inventory_elsewhere")


def _files(storage: Storage, path: str) -> Sequence[str]:
    if path.lower().endswith(_ENDINGS):
        return [path]
    paths = [p for batch in storage.listing(path) for p in batch.column("path").to_pylist()]
    own = sorted(p for p in paths if p.lower().endswith(_ENDINGS))
    if not own:
        raise MetadataUnreadable(f"{path} holds no inventory: name a file that ends with {', '.join(_ENDINGS)}")
    return own


def _batches(storage: Storage, path: str) -> Iterator[pl.DataFrame]:
    """Yield `key`, `size`, a time and perhaps `bucket`, in lower case with underscores; keys are decoded."""
    content = storage.read(path)
    try:
        if path.lower().endswith(".parquet"):
            for batch in pa.parquet.ParquetFile(pa.BufferReader(content)).iter_batches():
                yield _with_lower_names(pl.DataFrame(pl.from_arrow(batch)))
            return
        packed = path.lower().endswith(".gz")
        first = (gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content)).readline().decode()
        plain = "key" in [name.strip('" \r\n').lower() for name in first.split(",")]
        stream = pa.CompressedInputStream(pa.BufferReader(content), "gzip") if packed else pa.BufferReader(content)
        names = None if plain else [*_S3_COLUMNS, *(f"more_{i}" for i in range(first.count(",") - 3))]
        as_text = dict.fromkeys(names or first.strip().replace('"', "").split(","), pa.string())
        for batch in pa.csv.open_csv(
            stream, pa.csv.ReadOptions(column_names=names), convert_options=pa.csv.ConvertOptions(column_types=as_text)
        ):
            frame = _with_lower_names(pl.DataFrame(pl.from_arrow(batch)))
            yield frame if plain else frame.with_columns(pl.col("key").map_elements(unquote_plus, pl.String))
    except (pa.ArrowInvalid, OSError, EOFError, UnicodeDecodeError) as error:
        # Arrow's messages quote lines of the file, which may be any file that the service can read
        raise MetadataUnreadable(f"{path}: not a readable inventory ({type(error).__name__})") from None


def _with_lower_names(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.rename(lambda name: name.lower().replace("-", "_"))


def _columns(frame: pl.DataFrame, path: str) -> pl.DataFrame:
    """Return the columns `bucket` (null where the file has none), `key`, `bytes` and `modified`."""
    time = next((name for name in _TIMES if name in frame.columns), None)
    if time is None or not {"key", "size"} <= set(frame.columns):
        raise MetadataUnreadable(f"{path}: an inventory has the columns key, size and last_modified_date")
    moment = pl.col(time)
    if frame.schema[time] == pl.String:
        moment = moment.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False)
    elif getattr(frame.schema[time], "time_zone", None) is None:
        moment = moment.dt.replace_time_zone("UTC")
    return frame.select(
        bucket=pl.col("bucket") if "bucket" in frame.columns else pl.lit(None, pl.String),
        key=pl.col("key").str.strip_prefix("/"),
        bytes=pl.col("size").cast(pl.Int64, strict=False).fill_null(0),
        modified=moment.cast(pl.Datetime("us", "UTC")),
    )
