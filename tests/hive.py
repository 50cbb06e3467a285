"""Hive's standalone metastore on loopback, its database in memory; its jars are fetched once and kept.

The metastore's own program listens on all interfaces, so the server is put together through py4j instead. Hadoop is the
one that PySpark brings.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icewright.adapters.engines.spark.java import java_home
from tests.rest import CACHE
from tests.servers.fetching import fetched, opened_archive
from tests.servers.jvm import jars_of_pyspark, java_gateway

_MAVEN_HIVE = "org/apache/hive/hive-standalone-metastore"


@dataclass(frozen=True)
class _Version:
    """A metastore's own program, and what Hadoop brought once and has no more."""

    name: str
    path: str  # of its archive in a Maven repository
    digest: str
    more: tuple[tuple[str, str], ...]


_COLLECTIONS = (
    "commons-collections/commons-collections/3.2.2/commons-collections-3.2.2.jar",
    "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
)
_HIVE_3 = _Version(
    "apache-hive-metastore-3.1.3-bin",
    f"{_MAVEN_HIVE}/3.1.3/hive-standalone-metastore-3.1.3-bin.tar.gz",
    "83ddf76717eeb789091d845c069a631c25cad561c3d31ec0843a1ddf21f29409",
    (_COLLECTIONS,),
)
_HIVE_4 = _Version(
    "apache-hive-metastore-4.0.1-bin",
    f"{_MAVEN_HIVE}-server/4.0.1/hive-standalone-metastore-server-4.0.1-bin.tar.gz",
    "ed96f577df0a4dc800648a7f941d832f42409f89fa4af10c9d7540c8a1f8e24b",
    (
        _COLLECTIONS,
        (
            "javax/servlet/javax.servlet-api/3.1.0/javax.servlet-api-3.1.0.jar",
            "af456b2dd41c4e82cf54f3e743bc678973d9fe35bd4d3071fa05c7e5333b8482",
        ),
        (
            "org/apache/hadoop/hadoop-hdfs/3.3.6/hadoop-hdfs-3.3.6.jar",
            "075fc48fd4ae299a58a9f26fb529671854689b215483b595fed4a56d77cb4c4d",
        ),
    ),
)
_OF_PYSPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "httpclient", "httpcore", "jcl-over-slf4j", "slf4j-api", "jta"),
    "py4j",
)
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
def metastore_server(*, compares: bool = False, newest: bool = False) -> Iterator[Metastore]:
    """A metastore of its own, empty, gone afterwards: version 3.1.3, or 4.0.1 for the `newest`.

    One that `compares` what an alteration expects is the 2.3.10 that PySpark brings.
    """
    version = _HIVE_4 if newest else _HIVE_3
    with tempfile.TemporaryDirectory(prefix="icewright-hive-") as folder:
        java = java_home(os.environ.get("JAVA_HOME"), CACHE)
        opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
        options = ("-Xmx384m", f"-Dderby.stream.error.file={folder}/derby.log", *opened)
        jars = [jars_of_pyspark("py4j")[0].with_name("*")] if compares else _jars(version)
        with java_gateway(java, jars, *options) as (gateway, process):
            hive = gateway.jvm.org.apache.hadoop.hive.metastore
            if newest:
                _make_schema(gateway.jvm)
                conf = _configured(hive.conf.MetastoreConf.newMetastoreConf(), folder)
                handler = hive.HMSHandlerProxyFactory.getProxy(conf, hive.HMSHandler("metastore", conf), False)
            else:
                of = gateway.jvm.org.apache.hadoop.hive.conf.HiveConf if compares else None
                conf = _configured(of() if of else hive.conf.MetastoreConf.newMetastoreConf(), folder)
                of_all = hive.HiveMetaStore.HMSHandler("metastore", conf, False)
                handler = hive.RetryingHMSHandler.getProxy(conf, of_all, False)
                hive.txn.TxnDbUtil.prepDb(conf)  # the tables of locks
            server, port = _server(gateway.jvm, handler)
            thread = threading.Thread(target=_serve, args=(server,), daemon=True)
            thread.start()
            yield Metastore(f"thrift://127.0.0.1:{port}", process)
            server.stop()
            thread.join(5)


def _jars(version: _Version) -> list[Path]:
    more = [fetched(_cache(), *one) for one in version.more]
    return [_unpacked(version) / "lib" / "*", *more, *jars_of_pyspark(*_OF_PYSPARK)]


def _configured(conf: Any, folder: str) -> Any:
    for key, value in {**_SETTINGS, "hive.metastore.warehouse.dir": f"file://{folder}/warehouse"}.items():
        conf.set(key, value)
    return conf


def _make_schema(jvm: Any) -> None:
    """Make the tables of locks and all others, as Hive 4 does by a tool that wants more of Hadoop."""
    script = _unpacked(_HIVE_4) / "scripts/metastore/upgrade/derby/hive-schema-4.0.0.derby.sql"
    text = re.sub(r"^\s*--.*$|/\*.*?\*/", "", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = text.replace('"PARAM_VALUE" CLOB', '"PARAM_VALUE" VARCHAR(32672)')  # Derby compares no CLOB; others do
    statement = jvm.java.sql.DriverManager.getConnection(_SETTINGS["javax.jdo.option.ConnectionURL"]).createStatement()
    for one in filter(None, map(str.strip, text.split(";"))):
        statement.execute(one)


def _server(jvm: Any, handler: Any) -> tuple[Any, int]:
    """The server, listening, and its port."""
    thrift = jvm.org.apache.thrift
    socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    arguments = thrift.server.TThreadPoolServer.Args(socket)
    arguments.processor(jvm.org.apache.hadoop.hive.metastore.TSetIpAddressProcessor(handler))
    return thrift.server.TThreadPoolServer(arguments), socket.getServerSocket().getLocalPort()


def _serve(server: Any) -> None:
    with suppress(Exception):  # the JVM is gone at the end
        server.serve()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(home) / "icewright-servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _unpacked(version: _Version) -> Path:
    """The metastore's folder, fetched from Maven Central when it is not there yet (27 to 79 MB)."""
    kept = _cache() / version.name
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(dir=_cache()) as fresh:
            with opened_archive(fetched(Path(fresh), version.path, version.digest)) as archive:
                archive.extractall(fresh)
            with suppress(OSError):  # another process was faster
                (Path(fresh) / version.name).rename(kept)
    return kept
