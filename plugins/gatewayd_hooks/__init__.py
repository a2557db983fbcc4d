"""Plugin contract: hooks, the Protocol of every kind, the loader and the conformance kit.

Import from its modules. Nothing here imports torch, numpy or a web framework at module level.

Modules that have moved remain importable under their old names, as the same module objects, until
the major version of the contract is raised, for plugins written before the move.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MOVED = {
    "helpers": "bounded calling children formats grammars handover lineage marks quantized rounding"
    " schemas shortage spelling waiting",
    "requests": "answers checking fields gateway http nesting num_values refusal strict_json tables"
    " unserved",
    "testing.samples": "guide_texts states tokens",
    "testing.simulation": "decoding drafting fake_pages fake_sequence queue_columns queue_events"
    " resources",
    "testing.weights": "few_bits quantized_writing",
}
"""Subpackages, and the modules in each that used to be in the package above it."""
_NEW_NAMES = {
    f"{above}.{module}": f"{above}.{folder}.{module}"
    for package, modules in _MOVED.items()
    for above, _, folder in [f"{__name__}.{package}".rpartition(".")]
    for module in modules.split()
}


class _Alias(Loader):
    """Loader that returns the module of the new name for an old name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has set the spec of the old name


class _OldNames(MetaPathFinder):
    """Meta path finder for moved modules; consulted last, for names that no other finder knows."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = _NEW_NAMES.get(fullname)
        return None if name is None else ModuleSpec(fullname, _Alias(name))


# Last, so that lookups of all other modules cost nothing more.
sys.meta_path.append(_OldNames())
