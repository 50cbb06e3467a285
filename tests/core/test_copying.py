"""Where a copy has the files of its table: a table of cases."""

from __future__ import annotations

import pytest

from icewright.core.copying import Relocation
from icewright.testing.builders import metadata

OWN = Relocation.of(metadata(location="s3://lake/t/", properties={"write.data.path": "s3://pool/t"}), "s3://vault/t/")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://lake/t/data/a.parquet", "s3://vault/t/data/a.parquet"),
        ("s3a://lake/t/data/a.parquet", "s3://vault/t/data/a.parquet"),
        ("s3://lake/t", "s3://vault/t"),
        ("s3://pool/t/x/b.parquet", "s3://vault/t/elsewhere/*/b.parquet"),
        ("s3://other/t/data/a.parquet", "s3://vault/t/elsewhere/*/a.parquet"),
        ("s3://lake/t2/data/a.parquet", "s3://vault/t/elsewhere/*/a.parquet"),
        ("s3://lake/t/../u/a.parquet", "s3://vault/t/elsewhere/*/a.parquet"),
        ("gs://lake/t/data/a.parquet", "s3://vault/t/elsewhere/*/a.parquet"),
    ],
)
def test_a_file_keeps_its_path_in_folders_of_the_table_alone(path: str, expected: str) -> None:
    """What lies in another bucket, beside the table or above it goes to a folder that no other file's folder has."""
    start, _, end = expected.partition("*")
    target = OWN.path(path)
    assert (target.startswith(start), target.endswith(end), ".." in target) == (True, True, False), target
    assert "*" in expected or target == expected


def test_two_folders_elsewhere_are_two_in_the_copy() -> None:
    """Files of one name in them do not meet, not even in folders of an object store that one slash tells apart."""
    paths = [OWN.path(f"s3://{folder}/a.parquet") for folder in ("one/x", "two/x", "two/x/")]
    assert len(set(paths)) == 3


def test_paths_in_the_copy_are_the_same_whatever_the_properties_say() -> None:
    """A second copy looks for a file where the first one put it, also when the table writes elsewhere since."""
    later = Relocation.of(metadata(location="s3://lake/t/"), "s3://vault/t/")
    assert later.path("s3://pool/t/x/b.parquet") == OWN.path("s3://pool/t/x/b.parquet")
