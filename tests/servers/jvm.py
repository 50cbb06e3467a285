"""A JVM for servers of the tests, reached through py4j; it ends with its block."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

# A short life: the quick compiler alone, which by itself has 48 MB for its code and stops for good when they are full,
# a collector without threads of its own, and thousands of classes that nobody verifies.
LIGHT = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)

_FILES = """
public class QuietLocalFileSystem extends org.apache.hadoop.fs.LocalFileSystem {
  public QuietLocalFileSystem() { super(new Raw()); }
  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
      org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission) {}
  }
}
"""


def keep_permissions(spark: Any) -> None:
    """Let Hadoop's local files keep the permissions that they are created with.

    Without its native library Hadoop starts a process `chmod` for each file and folder: six for a small commit, which
    take a third of the commit's time. Janino, which Spark brings, compiles what does nothing instead.
    """
    java, new_array = spark._jvm, spark._sc._gateway.new_array
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_FILES)
    kind = compiler.getClassLoader().loadClass("QuietLocalFileSystem")
    files = kind.getDeclaredConstructors()[0].newInstance(new_array(java.java.lang.Object, 0))
    place, conf = java.java.net.URI("file:///"), spark._jsc.hadoopConfiguration()
    files.initialize(place, conf)
    arguments = new_array(java.java.lang.Object, 3)
    arguments[0], arguments[1], arguments[2] = place, conf, files
    methods = java.java.lang.Class.forName("org.apache.hadoop.fs.FileSystem").getDeclaredMethods()
    (add,) = (method for method in methods if method.getName() == "addFileSystemForTesting")
    add.setAccessible(True)
    add.invoke(None, arguments)


def jars_of_pyspark(*names: str) -> list[Path]:
    """Return the jars of these names that PySpark brings."""
    pyspark = find_spec("pyspark")
    own = Path(str(pyspark.origin if pyspark else "")).parent / "jars"
    return [jar for name in names for jar in sorted(own.glob(f"{name}-*.jar"))]


@contextmanager
def java_gateway(
    java: Path, jars: Sequence[Path], *options: str, log: IO[bytes] | None = None
) -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """Start a JVM of a Java home with these jars; yield py4j's gateway to it, and its process.

    Raises py4j's errors, `OSError` and `ValueError` when it does not start.
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    port, token, process = launch_gateway(
        jarpath=str(jars_of_pyspark("py4j")[-1]),
        classpath=":".join(map(str, jars)),
        java_path=str(java / "bin" / "java"),
        javaopts=[*LIGHT, *options],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stderr=log or subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway, process
    finally:
        with suppress(Exception):  # it may be dead already
            gateway.shutdown()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
