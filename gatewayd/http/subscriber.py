"""Who an address stands for, where clients are told apart by nothing else.

An IPv6 subscriber has a network of 64 bits at least: told apart by whole addresses it would be
as many clients as it likes.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

_SUBNET = 64
"""Bits of an IPv6 address that tell subscribers apart."""
_NO_TENANT = "@"
"""No tenant's name begins with it: a tenant may be called 10.0.0.1."""


def subscriber(address: str) -> str:
    """An address, or the network of one who has many."""
    return _network(address) if ":" in address else address


def queue_name(address: str) -> str:
    """What a subscriber is called where tenants share something; never the name of a tenant."""
    return _NO_TENANT + subscriber(address)


@lru_cache(maxsize=4096)
def _network(address: str) -> str:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address) or found.ipv4_mapped is not None:
        return str(getattr(found, "ipv4_mapped", None) or found)
    return f"{int(found) >> (128 - _SUBNET):x}::"
