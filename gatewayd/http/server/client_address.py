"""Identifies clients by address, where nothing else identifies them.

An IPv6 subscriber has at least a /64 network: by full addresses it could appear as any number of
clients.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

_SUBNET = 64
"""Prefix length that identifies an IPv6 subscriber."""
_NO_TENANT = "@"
"""Prefix that no tenant's name has, because a tenant may be named 10.0.0.1."""


def subscriber(address: str) -> str:
    """Return the IPv4 address, or the IPv6 /64 network, of an address."""
    return _network(address) if ":" in address else address


def queue_name(address: str) -> str:
    """Return a subscriber's name in queues for shared resources; never a tenant's name."""
    return _NO_TENANT + subscriber(address)


@lru_cache(maxsize=4096)
def _network(address: str) -> str:
    try:
        # Link-local addresses may have a zone, as in `fe80::1%eth0`.
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    # A dual-stack socket reports IPv4 clients as `::ffff:192.0.2.1`.
    if not isinstance(found, IPv6Address) or found.ipv4_mapped is not None:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return f"{int(found) >> (128 - _SUBNET):x}::"
