"""Materializes an asset as Dagster does; arguments: a program, a configuration, a table. Prints JSON."""

from __future__ import annotations

import json
import sys

import dagster

from icewright.integrations.dagster import IcewrightResource, maintained_asset

program, config, table = sys.argv[1:]


@dagster.asset
def metrics() -> None:
    """The table itself, built by somebody else's code."""


maintained = maintained_asset(table, upstream=["metrics"], operations=["expire_snapshots"])
good = {"icewright": IcewrightResource(executable=program, config_file=config)}
bad = {"icewright": IcewrightResource(executable=program, config_file="/no/such/file.yaml")}
done = dagster.materialize([metrics, maintained], resources=good)
(materialization,) = done.asset_materializations_for_node(maintained.op.name)
refused = dagster.materialize([metrics, maintained], resources=bad, raise_on_error=False)
out = {
    "success": done.success,
    "state": materialization.metadata["icewright/state"].value,
    "after": sorted(key.to_user_string() for key in maintained.asset_deps[maintained.key]),
    "wrong": refused.success,
    "health": good["icewright"].health(table)["health"],
}
sys.stdout.write("\n" + json.dumps(out) + "\n")
