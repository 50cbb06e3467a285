"""OpenTelemetry: what a receiver gets of a job, and that a receiver that fails costs the job nothing."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from icewright.app import tracing
from icewright.app.demo.tables import metrics
from icewright.app.tracing import trace_id
from tests.cli.workspace import Workspace
from tests.ecosystem.test_lineage import Receiver, receiver  # noqa: F401 - a fixture

pytestmark = pytest.mark.external  # makes a lakehouse for each test


def received() -> list[Span]:
    """Return the spans that the receiver got."""
    requests = [ExportTraceServiceRequest.FromString(body) for _, _, body in Receiver.got]
    return [span for r in requests for resource in r.resource_spans for s in resource.scope_spans for span in s.spans]


def told(span: Span) -> dict[str, object]:
    """Return the attributes of a span."""
    values = {a.key: (a.value, a.value.WhichOneof("value")) for a in span.attributes}
    return {key: getattr(value, str(kind)) for key, (value, kind) in values.items()}


def test_a_job_is_a_trace(workspace: Workspace, receiver: str) -> None:  # noqa: F811
    """The id of the trace is the job's, and its spans are the job, its waiting and each operation with snapshots."""
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    workspace.write(f"opentelemetry: {{url: '{receiver}', headers: {{Authorization: Bearer hush-4711-hush}}}}\n")
    result = workspace("run", "lake.ops.metrics", "--op", "rewrite_manifests", "--op", "expire_snapshots", "--json")
    assert result.json["state"] == "succeeded"
    assert {(path, key) for path, key, _ in Receiver.got} == {("/v1/traces", "Bearer hush-4711-hush")}
    spans = {span.name: span for span in received()}
    assert list(spans) == ["maintain lake.ops.metrics", "wait", "rewrite_manifests", "expire_snapshots"]
    whole, wait, rewrite, expiry = spans.values()
    assert {span.trace_id.hex() for span in spans.values()} == {trace_id(result.json["job_id"])}
    assert trace_id(result.json["job_id"]).endswith(result.json["job_id"].replace("-", ""))
    assert {span.parent_span_id for span in (wait, rewrite, expiry)} == {whole.span_id}
    assert len({span.span_id for span in spans.values()}) == 4
    times = [whole.start_time_unix_nano, wait.start_time_unix_nano, wait.end_time_unix_nano]
    times += [rewrite.start_time_unix_nano, rewrite.end_time_unix_nano, expiry.start_time_unix_nano]
    times += [expiry.end_time_unix_nano, whole.end_time_unix_nano]
    assert times == sorted(times)
    assert told(expiry)["icewright.state"] == "committed"
    assert told(expiry)["icewright.snapshot_after"]
    assert told(whole)["icewright.table"] == "lake.ops.metrics"
    assert {span.status.code for span in spans.values()} == {Status.STATUS_CODE_OK}
    assert "hush" not in result.err + result.out


def test_a_receiver_that_fails_harms_nothing(
    workspace: Workspace,
    receiver: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job succeeds, the log says that spans did not arrive, and the command ends all the same."""
    monkeypatch.setattr(Receiver, "status", 401)
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    workspace.write(f"opentelemetry: {{url: '{receiver}', headers: {{Authorization: hush-4711-hush}}}}\n")
    result = workspace("run", "lake.ops.metrics", "--op", "expire_snapshots", "--json")
    assert (result.code, result.json["state"]) == (0, "succeeded")
    assert "Failed to export" in result.err
    assert "hush" not in result.err


def test_a_receiver_that_never_ends_its_answer_holds_up_no_command(
    workspace: Workspace,
    receiver: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command ends, and leaves the spans behind."""
    hangs, freed = threading.Event(), threading.Event()

    def hang(_: BatchSpanProcessor) -> None:
        hangs.set()
        freed.wait(60)
        freed.set()

    monkeypatch.setattr(BatchSpanProcessor, "shutdown", hang)
    monkeypatch.setattr(tracing, "_SECONDS", 0.1)
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    workspace.write(f"opentelemetry: {{url: '{receiver}'}}\n")
    try:
        assert workspace("run", "lake.ops.metrics", "--op", "expire_snapshots", "--json").code == 0
        assert hangs.wait(60)
        assert not freed.is_set()
    finally:
        freed.set()
