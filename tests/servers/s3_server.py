"""s3proxy on loopback for demo and tests: the object `x` of its bucket is the file `x` of a folder.

Files that are laid into the folder are objects at once, as old as the file; they have no ETag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.fetching import fetched
from tests.servers.jvm import LIGHT
from tests.servers.loopback import process

BUCKET = "lake"
_KEY, _SECRET = "key", "hush"  # of a server that only this machine reaches
_JAR = (
    "org/gaul/s3proxy/4.1.0/s3proxy-4.1.0-jar-with-dependencies.jar",
    "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d",
)
_SETTINGS = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={basedir}
"""


def objects(folder: Path) -> Path:
    """Return where the objects of the bucket lie when the server has this folder."""
    return folder / "objects" / BUCKET


def s3_properties(port: int) -> dict[str, str]:
    """Return what a catalog says of the server, in the words of Iceberg's Java, which all take."""
    return {
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.path-style-access": "true",
        "s3.access-key-id": _KEY,
        "s3.secret-access-key": _SECRET,
        "client.region": "us-east-1",
    }


@contextmanager
def s3_served(java: Path, folder: Path, jars: Path, port: int) -> Iterator[Mapping[str, str]]:
    """Serve the bucket as long as the block lasts, by the Java of this home; the properties that reach it.

    The jar (55 MB) is kept in `jars`. Raises `EngineUnavailable` when it cannot be fetched or does not start.
    """
    jar = fetched(jars, *_JAR)
    objects(folder).mkdir(parents=True, exist_ok=True)
    said = folder / "s3proxy.properties"
    basedir = json.dumps(str(objects(folder).parent))[1:-1]  # such a file has Latin-1 and JSON's escapes
    said.write_text(_SETTINGS.format(port=port, key=_KEY, secret=_SECRET, basedir=basedir), encoding="latin-1")
    options = ["-Xmx384m", *LIGHT]
    command = [str(java / "bin" / "java"), *options, "-jar", str(jar), "--properties", str(said)]
    with process(command, port, f"/{BUCKET}", folder / "s3proxy.log"):
        yield s3_properties(port)
