"""File descriptors: the limit follows the configuration."""

from __future__ import annotations

import logging
import resource

import pytest

from gatewayd.daemon.systemd import descriptors


@pytest.mark.parametrize(
    ("limits", "connections", "set_to"),
    [
        ((1024, 65536), 2048, (2304, 65536)),
        ((1024, 2000), 2048, (2000, 2000)),
        ((4096, 65536), 2048, None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 2048, None),
        ((1024, resource.RLIM_INFINITY), 2048, (2304, resource.RLIM_INFINITY)),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_is_needed_and_allowed(
    limits: tuple[int, int],
    connections: int,
    set_to: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: made.append(both))
    with caplog.at_level(logging.WARNING):
        descriptors.raise_file_limit(connections)
    assert made == ([] if set_to is None else [set_to])
    assert bool(caplog.records) is (set_to == (2000, 2000))
