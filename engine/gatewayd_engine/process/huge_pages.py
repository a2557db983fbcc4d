"""Moves the memory of the daemon and of engines to huge pages after startup.

A request, and a step of an engine, pass thousands of objects all over the heap, and most of their
time goes into reaching them: with pages of 2 MiB the processor finds more of their addresses in its
own tables, and reads shorter ones where it does not.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
from pathlib import Path

_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_COLLAPSE = 25
"""``MADV_COLLAPSE`` of Linux 6.1, where huge pages are not disabled; other systems refuse it."""
_LEAST_RESIDENT = 0.5
"""Of the pages in a range: memory that is reserved and not used, such as stacks, stays so."""
_log = logging.getLogger(__name__)


def use_huge_pages(maps: Path = Path("/proc/self/maps")) -> int:
    """Move writable private memory to huge pages where it is in use.

    Takes tenths of a second, and seconds where there are gigabytes of weights: call it in a thread.

    Args:
        maps: the process's memory as Linux lists it; does nothing where it does not.

    Returns:
        Huge pages that were made.
    """
    try:
        ranges = _ranges(maps.read_text(), int(_SIZE.read_text()))
    except (OSError, ValueError) as error:
        _log.debug("no huge pages: %s", error)
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    made = 0
    for begin, size in ranges:
        resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        place, length = ctypes.c_void_p(begin), ctypes.c_size_t(size)
        if libc.mincore(place, length, resident):
            continue  # it is gone meanwhile
        if sum(page & 1 for page in resident) < _LEAST_RESIDENT * len(resident):
            continue
        if libc.madvise(place, length, _COLLAPSE) == 0:
            made += 1
        elif ctypes.get_errno() == errno.EINVAL and not made:
            break  # a kernel without this call refuses each of them
    return made


def _ranges(listed: str, size: int) -> list[tuple[int, int]]:
    """Return begin and size of what may become huge pages."""
    found = []
    for line in listed.splitlines():
        addresses, access, _, _, _, *names = line.split(maxsplit=5)
        if access != "rw-p" or names not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        first = -(-begin // size) * size
        found += [(at, size) for at in range(first, end - size + 1, size)]
    return found
