"""What processes report of their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from icewright.app.bootstrap import read_config
from icewright.app.service import configuration_fingerprints

CONFIG = """
state: sqlite:///state.db
catalogs:
  lake:
    type: rest
    properties:
      uri: https://catalog.example/api
      warehouse: {warehouse}
      token: {password}
policy: [{{match: lake.sales, set: {{compact.min_input_files: {files}}}}}]
"""


def fingerprints(folder: Path, **values: object) -> dict[str, str]:
    """The hashes of a configuration with these values."""
    path = folder / "icewright.yaml"
    defaults = {"password": "hush-0123", "warehouse": "s3://lake/w", "files": 5}
    path.write_text(CONFIG.format(**defaults | values), encoding="utf-8")
    return dict(configuration_fingerprints(read_config(path)))


@pytest.mark.cases(119)
def test_fingerprints_name_the_keys_that_differ_and_hold_no_secret(tmp_path: Path) -> None:
    """A hash for each key changes with its value; another password changes none, and no value can be read."""
    first = fingerprints(tmp_path)
    assert fingerprints(tmp_path, password="other-4567") == first
    second = fingerprints(tmp_path, files=9, warehouse="s3://lake/v")
    changed = {key for key in first if first[key] != second[key]}
    places = {"catalogs.lake.properties.warehouse", "catalogs.lake.allowed_locations"}
    assert changed == {"policy.lake.sales.compact.min_input_files", *places}
    assert "hush" not in str(first)
