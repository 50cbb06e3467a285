"""Apache's own REST catalog (the fixture of Iceberg's tests) in a JVM of ours, on loopback alone: for demo and tests.

Its jars come from Maven Central, each checked by its hash; Hadoop and py4j are those that PySpark brings. No Java is
compiled: the classes are put together through py4j.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from icewright.core.errors import EngineUnavailable
from tests.servers.fetching import fetched
from tests.servers.jvm import jars_of_pyspark, java_gateway
from tests.servers.rest_jars import JARS, JARS_FOR_S3

_OF_PYSPARK = (
    "hadoop-client-api", "hadoop-client-runtime", "aircompressor", "snappy-java", "jsr305", "jcl-over-slf4j", "py4j",
)  # fmt: skip

S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"


def fetch(folder: Path, *, s3: bool = False) -> list[Path]:
    """Return the jars in `folder`, with `s3` those of Iceberg's S3FileIO too (64 MB), fetched when they are not there.

    Raises `EngineUnavailable`.
    """
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda jar: fetched(folder, *jar), (*JARS, *(JARS_FOR_S3 if s3 else ()))))


@dataclass
class RestHost:
    """A JVM that serves any number of REST catalogs, each on a port of its own."""

    gateway: Any
    _servers: dict[str, Any] = field(default_factory=dict)

    def serve(self, database: Path, warehouse: str, port: int = 0, **properties: str) -> str:
        """Serve the tables of a SQLite database; the address."""
        jvm = self.gateway.jvm
        settings = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "jdbc.schema-version": "V1",
            "uri": f"jdbc:sqlite:{database}?busy_timeout=60000",
            "warehouse": warehouse,
            **properties,
        }
        java = jvm.java.util.HashMap()
        for key, value in settings.items():
            java.put(key, value)
        catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            "backend", java, jvm.org.apache.hadoop.conf.Configuration()
        )
        servlets, jetty = jvm.org.eclipse.jetty.ee10.servlet, jvm.org.eclipse.jetty.server
        handler = servlets.ServletContextHandler(0)  # without sessions
        rest = jvm.org.apache.iceberg.rest
        handler.getServletHandler().setDecodeAmbiguousURIs(True)  # names of tables may hold anything
        handler.addServlet(servlets.ServletHolder(rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))), "/*")
        server = jetty.Server()
        connector = jetty.ServerConnector(server)
        connector.setHost("127.0.0.1")
        connector.setPort(port)
        http = connector.getDefaultConnectionFactory().getHttpConfiguration()
        http.setUriCompliance(jvm.org.eclipse.jetty.http.UriCompliance.UNSAFE)
        server.addConnector(connector)
        server.setHandler(handler)
        server.start()
        address = f"http://127.0.0.1:{connector.getLocalPort()}"
        self._servers[address] = server
        return address

    def end(self, address: str) -> None:
        """Stop serving a catalog at this address."""
        self._servers.pop(address).stop()


@contextmanager
def rest_host(java: Path, folder: Path, log: IO[bytes] | None = None, *, s3: bool = False) -> Iterator[RestHost]:
    """Start the JVM of a Java home, with the jars in `folder`; `s3` when its tables lie there.

    Raises `EngineUnavailable`.
    """
    from py4j.protocol import Py4JError

    jars = [*fetch(folder, s3=s3), *jars_of_pyspark(*_OF_PYSPARK)]
    with ExitStack() as stack:
        try:
            gateway, _ = stack.enter_context(java_gateway(java, jars, "-Xmx384m", log=log))
        except (Py4JError, OSError, ValueError) as error:
            raise EngineUnavailable(f"the REST server's JVM did not start: {error}") from error
        yield RestHost(gateway)
