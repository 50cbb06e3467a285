"""Network addresses that only this machine reaches, and the address of the state store."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from pathlib import Path


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address; a name other than `localhost` may mean anything."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def beside(configuration: Path, state: str) -> str:
    """Return the state store's address; a relative SQLite path is relative to the configuration file."""
    prefix = "sqlite:///"
    if not state.startswith(prefix) or state.startswith(f"{prefix}/") or ":memory:" in state:
        return state
    return f"{prefix}{configuration.parent / state.removeprefix(prefix)}"
