"""Test sizes: small, medium and large ones, told apart by their durations on record.

``make quick`` runs the small ones, ``make test`` the medium ones as well, ``make acceptance`` the
large ones. A test without a record is small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

SIZES = ("small", "medium", "large")
SMALL_SECONDS, MEDIUM_SECONDS = 0.05, 0.3
"""What a test of that size takes at most, on two cores that run nothing else."""
LARGE_FOLDERS = ("tests/packaging/", "tests/security/hostile/")
"""They wait for builds, installations and neighbours."""
WAITING_FOLDERS = ("tests/daemon/", "tests/gatewayd/engines/", *LARGE_FOLDERS)
"""Their tests wait for much of their time, for processes and for clocks: none is small."""


def parse(text: str) -> frozenset[str]:
    """Read the value of ``--sizes``, such as ``small,medium``.

    Raises:
        ValueError: a size does not exist.
    """
    sizes = frozenset(text.split(","))
    if unknown := sizes.difference(SIZES):
        raise ValueError(f"--sizes takes {', '.join(SIZES)}, not {', '.join(sorted(unknown))}")
    return sizes


def size_of(test: str, seconds: Mapping[str, float]) -> str:
    """Return the size of a test.

    Args:
        test: its name, as in the record.
        seconds: the record; see ``durations.read``.
    """
    took = seconds.get(test, 0.0)
    if took > MEDIUM_SECONDS or test.startswith(LARGE_FOLDERS):
        return "large"
    return "medium" if took > SMALL_SECONDS or test.startswith(WAITING_FOLDERS) else "small"


def files_without(sizes: Collection[str], seconds: Mapping[str, float]) -> frozenset[str]:
    """Return the files on record none of whose tests may have one of these sizes."""
    if "small" in sizes:
        # A file outside of the folders may have tests that are not on record.
        return frozenset()
    found = {test.partition("::")[0] for test in seconds if size_of(test, seconds) in sizes}
    return frozenset(test for test in seconds if "::" not in test) - found


def folders_without(sizes: Collection[str]) -> tuple[str, ...]:
    """Return the folders none of whose tests has one of these sizes."""
    if "large" in sizes:
        return ()
    return LARGE_FOLDERS if "medium" in sizes else WAITING_FOLDERS
