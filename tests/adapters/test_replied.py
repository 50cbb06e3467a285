"""What a server's reply lacks of the metadata file that it names is refused, whatever else differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from icewright.adapters.engines.service.replied import require_as_written
from icewright.core.errors import Refused
from icewright.core.table import TableMetadata
from icewright.ports import Catalog
from icewright.testing import builders

WHOLE = builders.metadata(location="s3://lake/orders", properties={"gc.enabled": "false"})
FIRST, *_ = WHOLE.snapshots


@dataclass
class Server:
    """A catalog whose server replies with metadata, beside the metadata file."""

    file: TableMetadata
    name: str = "lake"

    def load_from_file(self, _: TableMetadata) -> TableMetadata:
        """The metadata as its file has it."""
        return self.file


def require(file: TableMetadata, reply: TableMetadata) -> None:
    """Compare a reply with the file that it names."""
    require_as_written(cast("Catalog", Server(file)), reply)


@pytest.mark.parametrize(
    ("file", "reply"),
    [
        ({}, {}),
        ({"table_uuid": ""}, {}),  # only a file of version 1 has none
        ({}, {"location": "s3://lake/orders/"}),
        ({"location": "s3://lake/orders/"}, {}),
        ({"properties": {}}, {}),
    ],
)
def test_a_reply_with_as_much_as_the_file_or_more_is_accepted(
    file: Mapping[str, Any], reply: Mapping[str, Any]
) -> None:
    """A slash at the end of a location, and what only the reply has, make no difference."""
    require(replace(WHOLE, **file), replace(WHOLE, **reply))


@pytest.mark.parametrize(
    ("reply", "lacking"),
    [
        ({"properties": {}}, "gc.enabled=false"),
        ({"table_uuid": ""}, f"uuid {WHOLE.table_uuid}"),
        ({"location": "/lake/orders"}, "location s3://lake/orders"),
        ({"location": "s3://lake/ordersX"}, "location s3://lake/orders"),
        ({"snapshots": WHOLE.snapshots[1:]}, f"snapshot 1 ({FIRST.manifest_list})"),
        ({"snapshots": (replace(FIRST, manifest_list=""), *WHOLE.snapshots[1:])}, "snapshot 1 (s3://"),
    ],
)
def test_a_reply_that_lacks_something_is_refused(reply: Mapping[str, Any], lacking: str) -> None:
    """The refusal names the file and what the reply lacks."""
    with pytest.raises(Refused) as refused:
        require(WHOLE, replace(WHOLE, **reply))
    assert f"{WHOLE.metadata_location} has {lacking}" in str(refused.value)
    assert refused.value.code == "reply_differs"


def test_manifests_that_a_snapshot_itself_names_are_compared() -> None:
    """A snapshot of version 1 may have no manifest list."""
    inline = replace(FIRST, manifest_list=None, manifests=("m-1.avro", "m-2.avro"))
    with pytest.raises(Refused, match=r"has snapshot 1 \(m-1.avro, m-2.avro\)"):
        require(
            replace(WHOLE, snapshots=(inline,)), replace(WHOLE, snapshots=(replace(inline, manifests=("m-1.avro",)),))
        )
