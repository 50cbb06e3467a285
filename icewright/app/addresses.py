"""Network addresses, as far as it matters who can reach them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; a name other than `localhost` may mean anything."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
