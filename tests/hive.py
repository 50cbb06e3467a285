"""Hive's standalone metastore on loopback, its database in memory; its jars are fetched once and kept.

The metastore's own program listens on all interfaces, so the server is put together through py4j instead. Hadoop is the
one that PySpark brings.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.fetching import fetched
from tests.servers.jvm import jars_of_pyspark, java_gateway

_NAME = "apache-hive-metastore-3.1.3-bin"
_FROM = (
    "https://repo1.maven.org/maven2/org/apache/hive/hive-standalone-metastore/3.1.3/"
    "hive-standalone-metastore-3.1.3-bin.tar.gz"
)
_SHA256 = "83ddf76717eeb789091d845c069a631c25cad561c3d31ec0843a1ddf21f29409"
_COLLECTIONS = (  # which Hadoop brought once, and has no more
    "commons-collections/commons-collections/3.2.2/commons-collections-3.2.2.jar",
    "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
)
_OF_PYSPARK = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", "slf4j-api", "jta", "py4j")
_OPENED = ("java.net", "java.lang", "java.util")
_SETTINGS = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "datanucleus.connectionPool.maxPoolSize": "60",  # a request for a lock takes two, and waits for ever for the second
    "datanucleus.connectionPoolingType": "hikaricp",
    "hive.metastore.event.db.notification.api.auth": "false",
    "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
    "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
}


@dataclass
class Metastore:
    """Where it is, and the JVM that it runs in."""

    uri: str
    process: subprocess.Popen[bytes]


@contextmanager
def metastore_server(*, compares: bool = False) -> Iterator[Metastore]:
    """A metastore of its own, empty, gone afterwards: version 3.1.3.

    One that `compares` what an alteration expects is the 2.3.10 that PySpark brings.
    """
    with tempfile.TemporaryDirectory(prefix="icewright-hive-") as folder:
        java = java_home(os.environ.get("JAVA_HOME"), CACHE)
        opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
        options = ("-Xmx384m", f"-Dderby.stream.error.file={folder}/derby.log", *opened)
        with java_gateway(java, _jars(compares=compares), *options) as (gateway, process):
            server, port = _server(gateway.jvm, folder, compares=compares)
            thread = threading.Thread(target=_serve, args=(server,), daemon=True)
            thread.start()
            yield Metastore(f"thrift://127.0.0.1:{port}", process)
            server.stop()
            thread.join(5)


def _jars(*, compares: bool) -> list[Path]:
    theirs = jars_of_pyspark(*_OF_PYSPARK)
    if compares:
        return [theirs[0].with_name("*")]
    return [_unpacked() / "lib" / "*", fetched(_cache(), *_COLLECTIONS), *theirs]


def _server(jvm: Any, folder: str, *, compares: bool) -> tuple[Any, int]:
    """The server, listening, and its port."""
    hive, thrift = jvm.org.apache.hadoop.hive.metastore, jvm.org.apache.thrift
    conf = jvm.org.apache.hadoop.hive.conf.HiveConf() if compares else hive.conf.MetastoreConf.newMetastoreConf()
    for key, value in {**_SETTINGS, "hive.metastore.warehouse.dir": f"file://{folder}/warehouse"}.items():
        conf.set(key, value)
    handler = hive.RetryingHMSHandler.getProxy(conf, hive.HiveMetaStore.HMSHandler("metastore", conf, False), False)
    hive.txn.TxnDbUtil.prepDb(conf)  # the tables of locks
    socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    arguments = thrift.server.TThreadPoolServer.Args(socket)
    arguments.processor(hive.TSetIpAddressProcessor(handler))
    return thrift.server.TThreadPoolServer(arguments), socket.getServerSocket().getLocalPort()


def _serve(server: Any) -> None:
    with suppress(Exception):  # the JVM is gone at the end
        server.serve()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "icewright-servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _unpacked() -> Path:
    """The metastore's folder, fetched from Maven Central when it is not there yet (27 MB)."""
    kept = _cache() / _NAME
    if not kept.is_dir():
        with urllib.request.urlopen(_FROM, timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != _SHA256:
            raise AssertionError(f"{_FROM} is not the file that it was")
        with tempfile.TemporaryDirectory(dir=_cache()) as fresh:
            packed = Path(fresh) / "metastore.tar.gz"
            packed.write_bytes(content)
            with tarfile.open(packed) as archive:
                archive.extractall(fresh, filter="data")
            with suppress(OSError):  # another process was faster
                (Path(fresh) / _NAME).rename(kept)
    return kept
