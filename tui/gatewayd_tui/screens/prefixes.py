"""Prefix screen: the tree of cached prefixes, whose nodes are loaded when expanded."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static, Tree
from textual.widgets.tree import TreeNode

from gatewayd.wire.snapshot import PrefixView
from gatewayd_tui import queries
from gatewayd_tui.changes import Change, changing, evict_page, eviction_message, pin_page
from gatewayd_tui.client import AdminRefused, DaemonUnreachable
from gatewayd_tui.figures import count
from gatewayd_tui.form_fields import form_fields
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.form import FormDialog

_ORDERS = ("size", "saved tokens")
Place = tuple[int, int | None]
"""Engine and page; page None stands for the roots."""
Node = TreeNode[PrefixView | Place | None]


class Pin(msgspec.Struct, frozen=True):
    """Form of a pin.

    Attributes:
        seconds: duration of the pin, from now on.
    """

    seconds: Annotated[int, Meta(ge=1, le=7 * 86_400)] = 600


def saved(row: PrefixView) -> int:
    """Return the prompt tokens that cache hits on this page saved."""
    return row.tokens * row.hits


def parent_of(data: PrefixView | Place | None) -> Place | None:
    """Return the parent page whose children a node shows."""
    return (data.engine, data.page) if isinstance(data, PrefixView) else data


class PrefixesScreen(ConsoleScreen):
    """Tree of cached prefixes, refreshed on request only, as queries cost engine time."""

    NAME = "prefixes"
    KEY = "5"
    TITLE = "Prefixes"

    BINDINGS = [
        Binding("o", "order", "Order", id="prefixes.order", tooltip="Sort by size or saved tokens"),
        Binding("r", "renew", "Refresh", id="prefixes.renew", tooltip="Reload the tree"),
        Binding("i", "pin", "Pin", id="prefixes.pin", tooltip="Pin a page and its prefix"),
        Binding("u", "unpin", "Unpin", id="prefixes.unpin", tooltip="Unpin a page"),
        Binding(
            "x", "evict", "Evict", id="prefixes.evict", tooltip="Evict a page and its descendants"
        ),
        Binding("j", "tree('cursor_down')", "Down", show=False, id="prefixes.down"),
        Binding("k", "tree('cursor_up')", "Up", show=False, id="prefixes.up"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = _ORDERS[0]
        self._engines: list[int] = []
        self._daemon: tuple[int, str] | None = None
        self._at = 0.0
        self._open: set[Place | None] = set()

    def body(self) -> ComposeResult:
        """Compose title and tree."""
        yield Static(id="prefixes-title")
        tree: Tree[PrefixView | Place | None] = Tree("prefixes", None)
        tree.show_root = False
        yield tree

    @property
    def tree(self) -> Tree[PrefixView | Place | None]:  # type: ignore[override]
        """Tree widget."""
        return self.query_one(Tree)

    def show(self, state: ConsoleState) -> None:
        """Rebuild the tree, with a branch per engine, if daemon, model or engines have changed."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        engines = [engine.index for engine in state.snapshot.engines]
        daemon = state.snapshot.daemon.pid, state.snapshot.daemon.model
        if (engines, daemon) != (self._engines, self._daemon):
            self._engines, self._daemon = engines, daemon
            self.action_renew()

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[PrefixView | Place | None]) -> None:
        """Load the children of a node when it is first expanded."""
        self._open.add(parent_of(event.node.data))
        if not event.node.children:
            self.fill(event.node)

    def on_tree_node_collapsed(self, event: Tree.NodeCollapsed[PrefixView | Place | None]) -> None:
        """Record that the node is collapsed, for the next rebuild."""
        self._open.discard(parent_of(event.node.data))

    @work(group="prefixes")
    async def fill(self, node: Node) -> None:
        """Load the children of a node."""
        place = parent_of(node.data)
        if place is None:
            return
        try:
            found = await queries.prefixes(self.console.calls, *place)
        except (DaemonUnreachable, AdminRefused) as error:
            node.remove_children()
            node.add_leaf(Text(f"✖ {error}", "red"), None)
            return
        # After the query: until then the node keeps its former children.
        node.remove_children()
        key = (lambda row: -saved(row)) if self._order == _ORDERS[1] else (lambda row: 0)
        for row in sorted(found.rows, key=key):
            if row.children:
                child = node.add(label(row), row)
                # Expanding loads its children as well, so that a rebuilt tree opens as before.
                if parent_of(row) in self._open:
                    child.expand()
            else:
                node.add_leaf(label(row), row)
        if found.more:
            node.add_leaf(Text(f"… and {found.more} more", "dim"), None)
        elif not found.rows:
            node.add_leaf(Text("the prefix cache is empty", "dim"), None)
        self._at = time.time()
        self._write_title()

    def action_renew(self) -> None:
        """Reload all expanded nodes."""
        self.tree.clear()
        for engine in self._engines:
            node = self.tree.root.add(Text(f"engine {engine}", "bold"), (engine, None))
            if len(self._engines) == 1 or (engine, None) in self._open:
                node.expand()
        self._write_title()

    def action_order(self) -> None:
        """Switch the sort order."""
        self._order = _ORDERS[1 - _ORDERS.index(self._order)]
        self.action_renew()

    def action_tree(self, verb: str) -> None:
        """Move the cursor like the arrow keys."""
        getattr(self.tree, f"action_{verb}")()

    def chosen(self) -> list[Any]:
        """Return the page under the cursor."""
        node = self.tree.cursor_node
        return [node.data] if node is not None and isinstance(node.data, PrefixView) else []

    def id_of(self, row: PrefixView) -> str:
        """Return engine and page."""
        return f"{row.engine}/{row.page}"

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Reload the branch that was changed."""
        node = self.tree.cursor_node
        # The parent, since the page itself may be evicted.
        self.fill(node.parent if node is not None and node.parent is not None else self.tree.root)
        said = eviction_message(answer)
        if said is not None:
            self.notify(said)

    @changing
    @work
    async def action_pin(self) -> None:
        """Ask for the duration, and pin the page."""
        rows = self.chosen()
        if not rows:
            # Shows the usual message that no row is selected.
            self.submit_changes([])
        for row in rows:
            title = f"Pin page {row.page} of engine {row.engine} and its prefix"
            form = FormDialog(title, form_fields(Pin, msgspec.to_builtins(Pin())))
            values = await self.app.push_screen_wait(form)
            if values is not None:
                pin = msgspec.convert(values, Pin)
                self.submit_changes([pin_page(row.engine, row.page, pin.seconds)])

    @changing
    def action_unpin(self) -> None:
        """Unpin the page."""
        self.submit_changes([pin_page(row.engine, row.page, 0) for row in self.chosen()])

    @changing
    def action_evict(self) -> None:
        """Evict the page and its descendants."""
        self.submit_changes([evict_page(row.engine, row.page) for row in self.chosen()])

    def _write_title(self) -> None:
        asked = time.strftime("%H:%M:%S", time.localtime(self._at)) if self._at else "never"
        self.query_one("#prefixes-title", Static).update(
            f"sorted by {self._order}, as of {asked}    tokens  hits  refs  tenant  text"
        )


def label(row: PrefixView) -> Text:
    """Render a page as one line."""
    text = Text(no_wrap=True)
    text.append("◆ " if row.is_pinned else "  ", "bold magenta")
    text.append(f"{count(row.tokens):>6} ", "bold")
    text.append(f"{count(row.hits):>5} ")
    text.append(f"{row.holders:>3} ", "green" if row.holders else "dim")
    text.append(f"{row.tenant or '-':<10.10} ", "cyan")
    if row.children:
        text.append(f"+{count(row.children)} ", "dim")
    text.append("".join(c if c.isprintable() else "·" for c in row.text) or "(text is not shown)")
    return text
