"""Bodies as those who push events send them, field by field as in the specifications and as seen on the wire."""

from __future__ import annotations

from typing import Any

SPARK = {
    "engine-name": "spark",
    "engine-version": "4.1.4",
    "iceberg-version": "Apache Iceberg 1.12.0 (commit 0a1b2c3d)",
}


def _counts(unit: str = "count", /, **values: int) -> dict[str, Any]:
    return {name.replace("_", "-"): {"unit": unit, "value": value} for name, value in values.items()}


def _took(nanoseconds: int) -> dict[str, Any]:
    return {"count": 1, "time-unit": "nanoseconds", "total-duration": nanoseconds}


SCAN_REPORT: dict[str, Any] = {  # POST /v1/{prefix}/namespaces/sales/tables/orders/metrics
    "report-type": "scan-report",
    "table-name": "lake.sales.orders",
    "snapshot-id": 6656377125404557408,
    "filter": {"type": "eq", "term": "region", "value": "(hash-37cef14e)"},  # or plain `true`
    "schema-id": 0,
    "projected-field-ids": [1, 2147483646],
    "projected-field-names": ["id", "_file"],
    "metrics": {
        "total-planning-duration": _took(64_000_000),
        **_counts(result_data_files=12, result_delete_files=3, total_data_manifests=4, scanned_data_manifests=2),
        **_counts("bytes", total_file_size_in_bytes=1_279_000, total_delete_file_size_in_bytes=90),
        **_counts(skipped_data_files=7, indexed_delete_files=0, dvs=0),
    },
    "metadata": SPARK,
}

COMMIT_REPORT: dict[str, Any] = {
    "report-type": "commit-report",
    "table-name": "lake.sales.orders",
    "snapshot-id": 6656377125404557408,
    "sequence-number": 4,
    "operation": "append",
    "metrics": {
        "total-duration": _took(370_474_587),
        **_counts(attempts=1, added_data_files=1, total_data_files=5, added_records=10, total_records=50),
        **_counts("bytes", added_files_size_bytes=1279, total_files_size_bytes=6395),
    },
    "metadata": SPARK,
}

_QUERY = {"user": "ann", "serverVersion": "482", "environment": "production", "queryType": "INSERT", "clientTags": []}
_LONG = "io.trino.plugin.base.metrics.LongCount"
_TIMING = "io.trino.plugin.base.metrics.DurationTiming"

TRINO: dict[str, Any] = {  # durations as Jackson 3 writes them, in Trino since 2026
    "metadata": {
        "queryId": "20261121_115900_00012_pzafy",
        "transactionId": "3e7820f0-4a9e-498f-88d8-c206ac85bd3e",
        "query": "INSERT INTO daily SELECT * FROM orders JOIN customers USING (id)",
        "queryState": "FINISHED",
        "tables": [],
        "uri": "http://trino:8080/v1/query/20261121_115900_00012_pzafy",
    },
    "statistics": {
        "cpuTime": "PT25.975S",
        "wallTime": "PT1M52.444S",
        "queuedTime": "PT0.001S",
        "planningTime": "PT1.733S",
        "physicalInputBytes": 4_000_000,
        "physicalInputRows": 1_293_616,
        "completedSplits": 507,
        "complete": True,
    },
    "context": _QUERY,
    "ioMetadata": {
        "inputs": [
            {
                "catalogName": "iceberg",
                "connectorName": "iceberg",
                "schema": "sales",
                "table": "orders",
                "columns": ["id", "region"],
                "connectorInfo": {"snapshotId": 6656377125404557408},
                "connectorMetrics": {
                    "dataFiles": {"@class": _LONG, "total": 17},
                    "dataFileSizeBytes": {"@class": _LONG, "total": 9_000_000},
                    "scanPlanningDuration": {"@class": _TIMING, "duration": "321.00ms"},
                },
                "physicalInputBytes": 3_000_000,
                "physicalInputRows": 1_135_200,
            },
            {
                "catalogName": "iceberg",
                "schema": "sales",
                "table": "customers",
                "columns": ["id"],
                "physicalInputBytes": 1_000_000,
            },
            {"catalogName": "iceberg", "schema": "sales", "table": "orders$snapshots", "columns": ["snapshot_id"]},
            {"catalogName": "tpch", "schema": "tiny", "table": "nation", "columns": ["name"]},
        ],
        "output": {"catalogName": "iceberg", "schema": "sales", "table": "daily", "columns": []},
    },
    "warnings": [],
    "createTime": "2026-11-21T11:57:07.100Z",
    "executionStartTime": "2026-11-21T11:57:07.222Z",
    "endTime": "2026-11-21T11:59:00.123456789Z",
}

OLD_TRINO: dict[str, Any] = {  # durations in seconds, as Jackson 2 writes them, and times too in some set-ups
    "metadata": {"queryId": "20210720_093342_00012_pzafy", "queryState": "FINISHED", "query": "SELECT 1"},
    "statistics": {"wallTime": 112.444, "planningTime": 1.733, "physicalInputBytes": 0, "complete": True},
    "context": {"user": "ann", "serverVersion": "359", "environment": "test"},
    "ioMetadata": {"inputs": [{"catalogName": "iceberg", "schema": "sales", "table": "orders", "columns": ["id"]}]},
    "createTime": 1795262222,
    "endTime": 1795262334.444,
}

TRINO_SPLIT = {"queryId": "20261121_115900_00012_pzafy", "stageId": "20261121_115900_00012_pzafy.1", "taskId": "1.0"}


def minio(key: str = "warehouse%2Fsales%2Forders%2Fmetadata%2F00003-a.metadata.json", **more: Any) -> dict[str, Any]:
    """What MinIO's webhook posts; S3's own notifications have the same `Records`."""
    record = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "awsRegion": "",
        "eventTime": "2026-11-21T11:59:00.569Z",
        "eventName": "s3:ObjectCreated:Put",
        "userIdentity": {"principalId": "minio"},
        "requestParameters": {"principalId": "minio", "region": "", "sourceIPAddress": "10.0.0.7"},
        "responseElements": {"x-amz-request-id": "17A9AB4FA9328C8F"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": "lake", "ownerIdentity": {"principalId": "minio"}, "arn": "arn:aws:s3:::lake"},
            "object": {"key": key, "size": 5, "eTag": "d8e8fca2dc0f896f", "sequencer": "17A9AB4FA93B35D8"},
        },
        **more,
    }
    return {"EventName": record["eventName"], "Key": f"lake/{key}", "Records": [record]}


def cloudevent(kind: str = "icewright.table.changed", data: Any = None, **more: Any) -> dict[str, Any]:
    """A CloudEvent in structured mode."""
    made = {"specversion": "1.0", "id": "1", "source": "/airflow/orders", "type": kind, "time": "2026-11-21T11:59:00Z"}
    made |= {"datacontenttype": "application/json"}
    return {**made, "data": {"table": "lake.sales.orders"} if data is None else data, **more}


GCS = {  # the body of an Eventarc delivery, whose attributes stand in headers
    "kind": "storage#object",
    "id": "lake/warehouse/sales/orders/metadata/00003-a.metadata.json/1670454587395344",
    "name": "warehouse/sales/orders/metadata/00003-a.metadata.json",
    "bucket": "lake",
    "contentType": "application/octet-stream",
    "size": "1048576",
    "timeCreated": "2026-11-21T11:59:00.000Z",
}
GCS_HEADERS = {
    "ce-id": "123451234512345",
    "ce-specversion": "1.0",
    "ce-time": "2026-11-21T11:59:00.789Z",
    "ce-type": "google.cloud.storage.object.v1.finalized",
    "ce-source": "//storage.googleapis.com/projects/_/buckets/lake",
    "ce-subject": "objects/warehouse/sales/orders/metadata/00003-a.metadata.json",
}
