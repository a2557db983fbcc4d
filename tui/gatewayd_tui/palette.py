"""Command palette with every screen and every action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from gatewayd_tui.screens.base import ConsoleApp, ConsoleScreen


class Command(NamedTuple):
    """Entry of the palette: ``title`` is searched, ``help`` is shown below it."""

    title: str
    help: str
    screen: str
    action: str | None


class Commands(Provider):
    """Provider of the console's commands."""

    async def discover(self) -> Hits:
        """List all commands."""
        for command in self._commands():
            yield DiscoveryHit(command.title, self._run(command), help=command.help)

    async def search(self, query: str) -> Hits:
        """Find commands that match the query."""
        matcher = self.matcher(query)
        for command in self._commands():
            score = matcher.match(command.title)
            if score > 0:
                title = matcher.highlight(command.title)
                yield Hit(score, title, self._run(command), help=command.help)

    def _commands(self) -> Iterator[Command]:
        console = self._console
        for screen in console.pages:
            yield Command(f"{screen.TITLE}", f"Open this screen ({screen.KEY})", screen.NAME, None)
        for screen in console.pages:
            for each in own_bindings(screen):
                if console.can_change or not is_change(screen, each.action):
                    title = f"{screen.TITLE}: {each.description}"
                    yield Command(
                        title, f"{each.tooltip or ''} ({each.key})", screen.NAME, each.action
                    )

        for plugin, action in console.added.actions if console.can_change else ():
            key = f" ({action.key})" if action.key else ""
            page = console.page()
            # The open screen: an action of a plugin belongs to none.
            name = page.NAME if page is not None else console.pages[0].NAME
            yield Command(
                action.title,
                f"Plugin {plugin}{key}",
                name,
                f"app.plugin_action('{plugin}.{action.id}')",
            )

    def _run(self, command: Command) -> Callable[[], Awaitable[None]]:
        return partial(self._console.run_command, command.screen, command.action)

    @property
    def _console(self) -> ConsoleApp:
        return cast("ConsoleApp", self.app)


def own_bindings(screen: type[ConsoleScreen]) -> list[Binding]:
    """Return the bindings of a screen without those of every screen."""
    return [each for each in screen.BINDINGS if isinstance(each, Binding)]


def is_change(screen: type[ConsoleScreen], action: str) -> bool:
    """Whether an action changes the daemon."""
    method = getattr(screen, f"action_{action.partition('(')[0]}", None)
    return getattr(method, "is_change", False)
