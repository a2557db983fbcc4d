"""Access of the tenant commands to the store: over the admin socket, or directly."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gatewayd.cli.common import fail, load_config


def run_action(
    config: Path | None,
    socket: Path | None,
    method: str,
    route: str,
    body: object = None,
    **query: str | None,
) -> Any:  # noqa: ANN401 - JSON
    """Run one of ``tenants.actions``, or exit with an error if it is refused.

    A running daemon runs the action if it has an admin socket. Otherwise the store is opened
    directly, which fails while a daemon without a socket holds its lock.
    """
    from gatewayd.admin.client import AdminError, call

    path = str(socket) if socket is not None else load_config(config).config.admin.socket
    given = {name: value for name, value in query.items() if value is not None}
    # Without a daemon the configured socket does not exist; one named by an option must.
    if path is not None and (socket is not None or Path(path).exists()):
        try:
            return call(path, method, f"{route}?{urlencode(given)}" if given else route, body)
        except AdminError as error:
            fail(str(error))
    return _offline(config, method, route, body, given)


def _offline(
    config: Path | None, method: str, route: str, body: object, query: dict[str, str]
) -> Any:  # noqa: ANN401 - JSON
    from gatewayd.cli.store import folder_of
    from gatewayd.errors import GatewayError
    from gatewayd.store.database import connect
    from gatewayd.store.errors import StoreError
    from gatewayd.store.location import lock_store
    from gatewayd.store.schema import upgrade_schema
    from gatewayd.tenants.actions import action_of, body_of
    from gatewayd.tenants.tenancy import act_offline

    action, params = action_of(method, route)
    try:
        checked = body_of(action, body)
        store = lock_store(str(folder_of(config)))
        try:
            engine = connect(store.database)
            try:
                # As at the start of a daemon: the actions need the present schema.
                upgrade_schema(engine, store.database)
                who = f"{getpass.getuser()}, on the command line"
                return act_offline(engine, store.folder, action, {**params, **query}, checked, who)
            finally:
                engine.dispose()
        finally:
            store.close()
    except StoreError as error:
        fail(f"{error}; to reach a running daemon, set [admin] socket")
    except GatewayError as error:
        fail(error.message)
