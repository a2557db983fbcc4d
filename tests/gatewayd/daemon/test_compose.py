"""A daemon that cannot be composed leaves nothing open."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gatewayd.config.load import load
from gatewayd.config.tables import Config
from gatewayd.daemon.compose import compose
from gatewayd.daemon.options import DaemonOptions, StartError
from gatewayd.daemon.parts import DaemonParts


def composed(config: Config) -> DaemonParts:
    return compose(config, DaemonOptions(reload=lambda: config), lambda _: None)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ('[admission]\nstrategy = "missing"', "missing"),
        ('[models.m]\npath = "embedded:nano"\nrouter = { strategy = "missing" }', "missing"),
        ('[routes.auto]\nstrategy = "missing"\ntargets = ["nano"]', "missing"),
        ('[catalogue]\nmemory = "1 MiB"\n[models.m]\npath = "embedded:nano"', "memory"),
        (
            '[upstreams.u]\nurl = "http://u/v1"\nmodels = { nano = "x" }',
            "both have the name 'nano'",
        ),
    ],
)
def test_a_failed_start_closes_its_port_and_store(tmp_path: Path, broken: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stated = (
        f'[server]\nport = {port}\n[admin]\nsocket = "{tmp_path}/admin.sock"\n'
        f'[store]\npath = "{tmp_path}/store"\n'
    )
    file = tmp_path / "g.toml"
    file.write_text(stated + broken)
    with pytest.raises(StartError, match=said):
        composed(load(file, environ={}).config)
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass
    # The store's lock is free as well, in this same process.
    file.write_text(stated)
    parts = composed(load(file, environ={}).config)
    parts.listening.close()
    parts.durable.close()
    assert parts.admin is not None
    parts.admin.server.listener.close()
