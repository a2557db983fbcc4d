"""Installed plugins: every entry point of group ``gatewayd``, read without importing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gatewayd_hooks.host.errors import DuplicatePlugin, NotInstalled
from gatewayd_hooks.strategy import Kind

GROUP = "gatewayd"
_KINDS = tuple(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point ``<kind>.<name>`` of one distribution.

    Attributes:
        kind: a value of ``Kind``, or an unknown one.
        name: its name in the configuration.
        distribution: the installed package.
        version: of the distribution.
        module: of the hooks, ``package.module`` or ``package.module:attribute``.
    """

    kind: str
    name: str
    distribution: str
    version: str
    module: str

    @property
    def plugin(self) -> str:
        """``<kind>.<name>``."""
        return f"{self.kind}.{self.name}" if self.name else self.kind

    @property
    def owner(self) -> str:
        """Distribution with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def is_known(self) -> bool:
        """Whether this version of the contract has its kind."""
        return self.kind in _KINDS and bool(self.name)

    def load(self) -> Any:  # noqa: ANN401 - a module or any object
        """Import it; raises whatever it raises."""
        return EntryPoint(self.plugin, self.module, GROUP).load()


class Catalog:
    """Installed plugins, ordered by kind, name and distribution."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(sorted(entries, key=_place))

    @classmethod
    def installed(cls) -> Catalog:
        """Read the metadata of the installed distributions."""
        entries = []
        for point in entry_points(group=GROUP):
            kind, _, name = point.name.partition(".")
            distribution, version = (
                ("unknown", "0")
                if point.dist is None
                else (
                    point.dist.name,
                    point.dist.version,
                )
            )
            entries.append(Entry(kind, name, distribution, version, point.value))
        return cls(entries)

    def names(self, kind: Kind) -> list[str]:
        """Return the available names of a kind."""
        return sorted({entry.name for entry in self.entries if entry.kind == kind and entry.name})

    def owners(self, kind: str, name: str) -> list[Entry]:
        """Return all entries of one name; more than one is a conflict."""
        return [entry for entry in self.entries if (entry.kind, entry.name) == (kind, name)]

    def find(self, kind: Kind, name: str) -> Entry:
        """Return the one entry of this kind and name.

        Raises:
            NotInstalled: there is none.
            Conflict: there is more than one.
        """
        owners = self.owners(kind, name)
        if not owners:
            installed = [f"{kind}.{other}" for other in self.names(kind)]
            raise NotInstalled(f"{kind}.{name}", installed)
        if len(owners) > 1:
            raise DuplicatePlugin(f"{kind}.{name}", [entry.owner for entry in owners])
        return owners[0]


def _place(entry: Entry) -> tuple[int, str, str]:
    index = _KINDS.index(entry.kind) if entry.is_known else len(_KINDS)
    return index, entry.plugin, entry.owner
