"""Console extensions from plugins, isolated: a broken plugin is reported and has no other effect.

Plugin code runs in a thread with a timeout: one that never returns costs a thread, not the console.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from gatewayd_hooks.console import Action, Panel, Rows
from gatewayd_hooks.console import Refused as NotDone
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import PluginError, describe_error
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.threads import start_call
from gatewayd_hooks.strategy import Kind
from gatewayd_tui.client import AdminRefused, Calls, DaemonUnreachable

LOAD_SECONDS = 5.0
SHOW_SECONDS = 1.0
RUN_SECONDS = 60.0
MOST_ROWS = 200
ResultT = TypeVar("ResultT")
_PartT = TypeVar("_PartT", Panel, Action)


class FailedPlugin(NamedTuple):
    """Plugin that could not be loaded, with the reason."""

    plugin: str
    reason: str


@dataclass(frozen=True, slots=True)
class Extensions:
    """Panels and actions of plugins.

    Attributes:
        panels, actions: each with the name of its plugin.
        failed: plugins that could not be loaded.
    """

    panels: tuple[tuple[str, Panel], ...] = ()
    actions: tuple[tuple[str, Action], ...] = ()
    failed: tuple[FailedPlugin, ...] = ()

    def action(self, name: str) -> tuple[str, Action] | None:
        """Return an action by ``<plugin>.<id>``."""
        return next((one for one in self.actions if f"{one[0]}.{one[1].id}" == name), None)


class PanelContent(NamedTuple):
    """Content of a panel as text: a table, or lines if ``columns`` is empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def load(names: Iterable[str], seconds: float = LOAD_SECONDS) -> Extensions:
    """Load console plugins, one after the other."""
    host = PluginHost(Catalog.installed())
    panels: list[tuple[str, Panel]] = []
    actions: list[tuple[str, Action]] = []
    failed = []
    # Without duplicates, in the order in which they were named.
    for name in dict.fromkeys(names):
        try:
            more = _start_call(partial(_extensions_of, host, name)).result(seconds)
        except TimeoutError:
            failed.append(FailedPlugin(name, f"does not load within {seconds:g} s"))
        except PluginError as error:
            failed.append(FailedPlugin(name, error.reason))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            failed.append(FailedPlugin(name, describe_error(error)))
        else:
            panels += [(name, panel) for panel in more[0]]
            actions += [(name, action) for action in more[1]]
    return Extensions(tuple(panels), tuple(actions), tuple(failed))


async def call_in_thread(call: Callable[[], ResultT], seconds: float) -> ResultT:
    """Call a plugin's function in a thread, with a timeout.

    Raises:
        TimeoutError: it has not returned; its thread is abandoned.
        Exception: whatever it raises.
    """
    return await asyncio.wait_for(asyncio.wrap_future(_start_call(call)), seconds)


def render_panel(panel: Panel, look: Mapping[str, Any]) -> PanelContent:
    """Call a panel and validate its content.

    Raises:
        Exception: whatever it raises; a ``TypeError`` if it returns something else.
    """
    shown = panel.show(look)
    if isinstance(shown, Rows):
        columns = tuple(_line(each) for each in shown.columns)
        # Converted here, in the plugin's thread: `str` of its objects may hang or raise.
        rows = tuple(tuple(map(_line, row)) for row in shown.rows[:MOST_ROWS])
        if not columns or any(len(row) != len(columns) for row in rows):
            raise TypeError("the number of cells of a row differs from the number of columns")
        return PanelContent(columns, rows)
    # A text is a sequence, too, of characters.
    if isinstance(shown, str) or not isinstance(shown, Sequence):
        raise TypeError(f"it returned {type(shown).__name__}, neither Rows nor a list of lines")
    return PanelContent((), tuple((_line(each),) for each in shown[:MOST_ROWS]))


class ThreadCalls:
    """Synchronous admin API for an action, called in its thread.

    Args:
        source: sends the calls.
        loop: of the console.
    """

    def __init__(self, source: Calls, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop

    def call(self, method: str, route: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """See ``AdminCalls``."""
        # An action has the admin API, not any route that the socket may have.
        if not route.startswith("/admin/"):
            raise NotDone(f"{route} is no route of the admin API")
        asked = self._source.call(method, route, body)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result(RUN_SECONDS)
        except (DaemonUnreachable, AdminRefused) as error:
            raise NotDone(str(error)) from error
        except TimeoutError as error:
            raise NotDone("the daemon has not answered") from error


async def run(action: Action, source: Calls) -> str:
    """Run an action and return its message.

    Raises:
        Exception: whatever it raises.
    """
    calls = ThreadCalls(source, asyncio.get_running_loop())
    return _line(await call_in_thread(partial(action.run, calls), RUN_SECONDS))


def failure_reason(error: Exception) -> str:
    """Return why an action failed, as a sentence."""
    if isinstance(error, TimeoutError):
        return f"it did not return within {RUN_SECONDS:g} s"
    return str(error) if isinstance(error, NotDone) else describe_error(error)


def _extensions_of(host: PluginHost, name: str) -> tuple[list[Panel], list[Action]]:
    """Return the panels and actions of one plugin.

    Raises:
        PluginError: it cannot be loaded.
        Exception: what its hooks raise.
    """
    for failure in host.hooked(Kind.CONSOLE, [name]):
        raise PluginError(f"{failure.kind}.{failure.name}", failure.reason)
    module = Catalog.installed().find(Kind.CONSOLE, name).module
    panels = _offered(host, "gatewayd_console_panels", module, Panel)
    actions = _offered(host, "gatewayd_console_actions", module, Action)
    if not panels and not actions:
        raise TypeError("it adds neither a panel nor an action")
    return panels, actions


def _offered(host: PluginHost, hook: str, module: str, kind: type[_PartT]) -> list[_PartT]:
    caller = host.listeners(hook).get(module)
    found = [] if caller is None else [each for some in caller() for each in some]
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{hook} returned {type(each).__name__}, not {kind.__name__}")
    ids = [each.id for each in found]
    if len(set(ids)) < len(ids):
        raise TypeError(f"{hook} returned a duplicate id")
    return found


def _start_call(call: Callable[[], ResultT]) -> Future[ResultT]:
    return start_call("plugin", call, lambda error: RuntimeError(describe_error(error)))


def _line(value: object) -> str:
    """Return a printable single line: a panel may show text from clients."""
    return "".join(c if c.isprintable() else "·" for c in str(value))
