"""Dockerfile, compose file, units and chart: linted and rendered, and what they run exists."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from helm_python.errors import HelmError
from typer.testing import CliRunner

from icewright import __version__
from icewright.adapters.catalogs.translate import sql
from icewright.adapters.catalogs.translate.storage import ICEBERG_RUNTIME, ObjectStoreKind
from icewright.app.bootstrap import read_config
from icewright.app.cli import app

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "icewright"
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
CI_VALUES = {path.name: yaml.safe_load(path.read_text("utf-8")) or {} for path in (CHART / "ci").glob("*-values.yaml")}
EVERYTHING: dict[str, Any] = CI_VALUES["everything-values.yaml"]


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configurations that are shipped name."""
    monkeypatch.setenv("PGPASSWORD", "secret-of-the-store")
    monkeypatch.setenv("ICEWRIGHT_EVENTS_TOKEN", "0123456789abcdef")


def understood(arguments: list[str]) -> bool:
    """Whether the command line has such a command with such options."""
    return CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="lake", namespace="data")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def the(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of this kind and name."""
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def containers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The containers of all workloads."""
    workloads = [o for o in objects if o["kind"] in ("Deployment", "Job")]
    return [c for o in workloads for c in o["spec"]["template"]["spec"]["containers"]]


def test_dockerfile_is_linted() -> None:
    """Hadolint finds nothing, not even a matter of style."""
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_dockerfile_keeps_to_its_promises() -> None:
    """No root, a health check at /healthz, and only what the repository has is copied."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert "/healthz" in last
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in line.split()]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in ignored] == []


def test_what_is_built_from_cannot_be_moved() -> None:
    """The container's base is named by its digest, and each action of a workflow by its commit."""
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [base for base in bases if not re.search(r"@sha256:[0-9a-f]{64}$", base)] == []
    assert len(set(bases)) == 1
    for path in (ROOT / ".github" / "workflows").iterdir():
        steps = [step for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values() for step in job["steps"]]
        assert [a for s in steps if (a := s.get("uses")) and not re.search(r"@[0-9a-f]{40}$", a)] == []


def test_the_release_workflow() -> None:
    """A tag is tested before anything is published, nothing may more than it needs, and all commands exist."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["permissions"] == {"contents": "read"}
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands
    assert "make release" in commands
    assert not [c for c in commands if "${{" in c]  # what an expression has would be code for the shell
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)
    (required,) = [c for c in commands if c.startswith("grep ")]
    for tag, accepted in ((f"v{__version__}", True), ("v0.0.0", False)):
        done = subprocess.run(
            ["bash", "-ec", required], cwd=ROOT, env={"TAG": tag, "PATH": os.environ["PATH"]}, check=False
        )
        assert (done.returncode == 0) is accepted


def test_documented_hashes_of_jars() -> None:
    """They are of the versions that pools ask Maven for, and of the files that Spark used here, where it has."""
    said = dict(
        reversed(line.split())
        for line in re.findall(
            r"^[0-9a-f]{64}  \S+$", (ROOT / "docs/how-to/spark-clusters.md").read_text("utf-8"), re.MULTILINE
        )
    )
    packages = (ICEBERG_RUNTIME, ObjectStoreKind.S3.package, *sql.DRIVERS.values())
    asked = {f"{artifact}-{version}.jar": group for group, artifact, version in (p.split(":") for p in packages)}
    assert said.keys() == asked.keys()
    for name, group in asked.items():
        jar = Path.home() / ".ivy2.5.2" / "jars" / f"{group}_{name}"
        assert not jar.exists() or sha256(jar.read_bytes()).hexdigest() == said[name]


def test_compose_file() -> None:
    """Every service that is waited for exists, secrets come from outside, and each command is one of ours."""
    compose = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"database", "migrate", "service", "worker"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        named = [volume.partition(":")[0] for volume in service["volumes"] if not volume.startswith(".")]
        assert set(named) <= set(compose["volumes"])
    ours = {name: service for name, service in services.items() if name != "database"}
    assert all(understood(service["command"]) for service in ours.values())
    assert all(value.startswith("${") for s in ours.values() for value in s["environment"].values())
    assert [name for name, service in ours.items() if service.get("healthcheck")] == ["migrate", "worker"]
    assert read_config(ROOT / "deploy" / "docker" / "icewright.yaml").server.port == 8765


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit(path: Path) -> None:
    """Each unit runs a command that exists, as a user without rights; systemd, where it is, finds no fault."""
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys as they are written
    unit.read(path)
    if path.suffix == ".service":
        program, *arguments = unit["Service"]["ExecStart"].split()
        assert program == "/opt/icewright/bin/icewright"
        assert understood(arguments)
        assert unit["Service"]["User"] == "icewright"
        assert unit["Service"]["NoNewPrivileges"] == "yes"
    if analyze := shutil.which("systemd-analyze"):
        result = subprocess.run([analyze, "verify", "--man=no", path], capture_output=True, text=True, check=False)
        lines = result.stderr.splitlines()
        assert [line for line in lines if path.stem in line and "/opt/icewright/bin/icewright" not in line] == []


def test_chart_is_linted() -> None:
    """Helm has nothing worse to say than that there is no picture."""
    found = helm.lint(str(CHART), EVERYTHING, strict=True)
    assert found["errors"] == []
    assert {m["error"] for m in found["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("values", CI_VALUES.values(), ids=list(CI_VALUES))
def test_chart_renders(values: dict[str, Any], tmp_path: Path) -> None:
    """Every container runs one of our commands, without root, and the configuration inside is one that we take."""
    objects = rendered(values)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))
    for container in containers(objects):
        assert understood(container["args"])
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        secrets = {e["name"]: e["valueFrom"] for e in container["env"] if "secretKeyRef" in e.get("valueFrom", {})}
        assert set(secrets) == {"PGPASSWORD", "ICEWRIGHT_EVENTS_TOKEN"}
    for configuration in (o for o in objects if o["kind"] == "ConfigMap"):
        path = tmp_path / "icewright.yaml"
        path.write_text(configuration["data"]["icewright.yaml"], encoding="utf-8")
        assert list(read_config(path).catalogs) == ["lake"]


def test_chart_by_default() -> None:
    """One service that plans and answers probes, one worker, and the store upgraded before both."""
    objects = rendered({})
    service = the(objects, "Deployment", "lake-icewright")
    (container,) = service["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "--grace-seconds=300", "--no-worker"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert service["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 300
    worker = the(objects, "Deployment", "lake-icewright-worker")
    assert worker["spec"]["replicas"] == 1
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    assert "--probe-port=8766" in container["args"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
    assert {"name": "probes", "containerPort": 8766} in container["ports"]
    migration = the(objects, "Job", "lake-icewright-migration")
    assert migration["spec"]["template"]["spec"]["containers"][0]["args"] == ["db", "upgrade"]
    hooks = [o["metadata"].get("annotations", {}) for o in objects if o["metadata"]["name"].endswith("migration")]
    assert {h["helm.sh/hook"] for h in hooks} == {"pre-install,pre-upgrade"}
    kinds = {o["kind"] for o in objects}
    assert not kinds & {"HorizontalPodAutoscaler", "ServiceMonitor", "Role", "Secret"}


def test_chart_with_everything() -> None:
    """Workers scale and may make executors, and Prometheus finds the service by its labels."""
    objects = rendered(EVERYTHING)
    worker = the(objects, "Deployment", "lake-icewright-worker")
    assert "replicas" not in worker["spec"]
    scaler = the(objects, "HorizontalPodAutoscaler", "lake-icewright-worker")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "lake-icewright-worker"
    assert the(objects, "Role", "lake-icewright-spark")
    monitor = the(objects, "ServiceMonitor", "lake-icewright")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= the(objects, "Service", "lake-icewright")["metadata"]["labels"].items()
    pods = the(objects, "Deployment", "lake-icewright")["spec"]["template"]
    assert wanted.items() <= pods["metadata"]["labels"].items()
    assert pods["spec"]["containers"][0]["args"] == ["serve", "--grace-seconds=300", "--slots=4"]


def selected(objects: list[dict[str, Any]], kind: str) -> dict[str, set[str]]:
    """The components that each object of the kind is about, by its name."""
    labels = {
        o["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: o["spec"]["template"]["metadata"]
        for o in objects
        if o["kind"] in ("Deployment", "Job")
    }
    found = {}
    for one in (o for o in objects if o["kind"] == kind):
        spec = one["spec"]
        wanted = spec.get("selector", spec.get("podSelector"))["matchLabels"].items()
        found[one["metadata"]["name"]] = {name for name, pod in labels.items() if wanted <= pod["labels"].items()}
    return found


def test_chart_at_its_edges() -> None:
    """Drains leave one pod, only what is named gets in, the pages have an address, and `helm test` asks the service."""
    defaults, objects = rendered({}), rendered(EVERYTHING)
    budgets = {"lake-icewright": {"service"}, "lake-icewright-worker": {"worker"}}
    assert selected(defaults, "PodDisruptionBudget") == selected(objects, "PodDisruptionBudget") == budgets
    assert not {o["kind"] for o in defaults} & {"Ingress", "NetworkPolicy"}
    assert selected(objects, "NetworkPolicy") == {
        "lake-icewright": {"service", "worker", "migration"},
        "lake-icewright-service": {"service"},
        "lake-icewright-worker": {"worker"},
    }
    (rule,) = the(objects, "NetworkPolicy", "lake-icewright-service")["spec"]["ingress"]
    (pod,) = [o for o in objects if o["kind"] == "Pod"]
    assert rule["from"][0] == EVERYTHING["networkPolicy"]["from"][0]
    assert rule["from"][1]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "ingress" not in the(objects, "NetworkPolicy", "lake-icewright")["spec"]
    ports = {
        port["port"]
        for rule in the(objects, "NetworkPolicy", "lake-icewright-worker")["spec"]["ingress"]
        for port in rule["ports"]
    }
    declared = {port["name"] for container in containers(objects) for port in container.get("ports", [])}
    assert ports | {"http"} == declared
    (route,) = the(objects, "Ingress", "lake-icewright")["spec"]["rules"]
    assert route["http"]["paths"][0]["backend"]["service"] == {"name": "lake-icewright", "port": {"name": "http"}}
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert '"http://lake-icewright:8765/readyz"' in container["args"][0]
    compile(container["args"][0], "test", "exec")


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"state": "sqlite:///icewright.db", "catalogs": {"lake": {}}}},
        {"config": {"state": "postgresql://h/d", "catalogs": {"lake": {}}}, "secretEnv": {"PGPASSWORD": "hush"}},
        {"worker": {"replica": 2}},
        {"graceSeconds": "300"},
        {"ingress": {"enabled": True, "hosts": []}},
    ],
    ids=[
        "a store of its own for each pod",
        "a secret in the values",
        "a key misspelt",
        "a text for a number",
        "no host",
    ],
)
def test_chart_refuses(values: dict[str, Any]) -> None:
    """Values that cannot be meant are refused before anything is installed."""
    with pytest.raises(HelmError):
        rendered(values)
