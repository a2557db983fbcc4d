"""Radix tree of token ids for each salt, whose edges are runs of pages.

A match has token granularity: where a prompt diverges from the tree within a page, that page is the
last of the match. Whole runs are compared at once, so matching is linear in the prompt. After
RadixAttention: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs"
(2024), where edges are tokens; pages of more than one are an extension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.caching import Match
from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_prefix_radix.tree import HOLE, RadixNode, common_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

_NO_NODE = -1
_FORM = "radix/1"


@dataclass(slots=True)
class RadixTrail:
    """Salt and known tokens of a sequence.

    Attributes:
        salt: of its tree.
        tokens: its prompt, or its computed ids if these are more; replaced, never written to.
    """

    salt: bytes
    tokens: NDArray[np.int32]


class Radix:
    """Trees by salt, and the node of each page."""

    def __init__(self) -> None:
        self._page_size = 0
        self._roots: dict[bytes, RadixNode] = {}
        self._salts: dict[int, bytes] = {}
        self._nodes: dict[int, RadixNode] = {}
        self._last_number = 0
        # Per page: its node's number, and its depth in pages, which does not change when nodes are
        # split or joined.
        self._node_of = np.zeros(0, np.int64)
        self._index_of = np.zeros(0, np.int64)

    def open(self, resources: EngineResources) -> None:
        """Read the page size and the number of pages."""
        self._page_size = resources.page_size
        self._node_of = np.full(resources.num_pages, _NO_NODE, np.int64)
        self._index_of = np.zeros(resources.num_pages, np.int64)

    def close(self) -> None:
        """Clear the trees."""
        self._roots.clear()
        self._salts.clear()
        self._nodes.clear()

    def export_state(self) -> HandoverState:
        """Return the trees; trails need nothing else."""
        trees = (self._roots, self._salts, self._nodes)
        places = (self._last_number, self._node_of, self._index_of)
        return HandoverState(_FORM, (self._page_size, trees, places))

    def import_state(self, state: HandoverState) -> bool:
        """Take over the trees of another; tables are copied, because its ``close`` clears them."""
        if state.form != _FORM:
            return False
        page_size, trees, (last_number, node_of, index_of) = state.content
        if page_size != self._page_size or len(node_of) != len(self._node_of):
            return False
        self._roots, self._salts, self._nodes = map(dict, trees)
        self._last_number, self._node_of, self._index_of = last_number, node_of, index_of
        return True

    def begin(self, tokens: NDArray[np.int32], salt: bytes) -> RadixTrail:
        """Copy the prompt: the array may be overwritten later."""
        return RadixTrail(salt, tokens.astype(np.int32))

    def match(self, trail: RadixTrail) -> Match:
        """Walk down the tree as far as tokens match and pages are cached."""
        size, tokens = self._page_size, trail.tokens
        found: list[int] = []
        node = self._roots.get(trail.salt)
        while node is not None:
            rest = tokens[len(found) * size :]
            child = node.find(rest[:size])
            # No cached page has all of the next tokens; the closest one may have the first of them.
            if child is None or child.pages[0] == HOLE:
                page, common = node.closest(rest[:size])
                return _ending(found, size, page, common)
            common = common_length(rest, child.tokens)
            whole = child.pages[: common // size]
            # Pages after a hole are valid, but useless until it is filled: KV must be contiguous.
            holes = np.flatnonzero(whole == HOLE)
            if len(holes):
                found += whole[: holes[0]].tolist()
                break
            found += whole.tolist()
            if len(whole) < len(child.pages):
                return _ending(found, size, int(child.pages[len(whole)]), common % size)
            node = child
        return Match(found, len(found) * size)

    def insert(
        self, trail: RadixTrail, tokens: NDArray[np.int32], pages: NDArray[np.int32]
    ) -> Sequence[int]:
        """Walk down the tree, fill holes on the way, and extend it at the end.

        The whole path is walked every time: a sequence that was preempted comes back with other
        pages for tokens inserted before.
        """
        if len(tokens) > len(trail.tokens):
            trail.tokens = tokens.astype(np.int32)
        if not len(pages):
            return []
        node = self._roots.get(trail.salt)
        if node is None:
            none = np.zeros(0, np.int32)
            node = self._roots[trail.salt] = self._make(None, 0, none, none)
            self._salts[node.number] = trail.salt
        size = self._page_size
        taken: list[int] = []
        done = 0
        while done < len(pages):
            rest = tokens[done * size :]
            child = node.find(rest[:size])
            if child is None:
                taken += self._grow(node, rest, pages[done:])
                break
            whole = common_length(rest, child.tokens) // size
            taken += self._fill(child, pages[done : done + whole])
            done += whole
            # The sequence diverges within the run, and goes on: what it does not share becomes a
            # child.
            if whole < len(child.pages) and done < len(pages):
                self._split(child, whole)
            node = child
        return taken

    def forget(self, page: int) -> None:
        """Leave a hole, and prune nodes that only lead to holes."""
        node = self._nodes.get(int(self._node_of[page]))
        if node is None:
            return
        self._node_of[page] = _NO_NODE
        node.pages[self._index_of[page] - node.start] = HOLE
        # A leaf must not end with holes: no match can use them.
        while node.parent is not None and not node.children and node.pages[-1] == HOLE:
            there = np.flatnonzero(node.pages != HOLE)
            if len(there):
                self._shorten(node, int(there[-1]) + 1)
                return
            parent = node.parent
            parent.remove(node, self._page_size)
            del self._nodes[node.number]
            node = parent
        if node.parent is not None:
            # Only a root may have a single child, so a path has no more nodes than divergences.
            if len(node.children) == 1:
                self._join(node)
        elif not node.children:
            # Nothing is cached for this salt: roots of tenants that left must not accumulate.
            del self._nodes[node.number]
            del self._roots[self._salts.pop(node.number)]

    def _make(
        self,
        parent: RadixNode | None,
        start: int,
        tokens: NDArray[np.int32],
        pages: NDArray[np.int32],
    ) -> RadixNode:
        self._last_number += 1
        node = self._nodes[self._last_number] = RadixNode(
            self._last_number, parent, start, tokens, pages
        )
        return node

    def _place(self, node: RadixNode, pages: NDArray[np.int32], start: int) -> None:
        """Record the node and depth of pages; ``start`` is the depth of the first."""
        self._node_of[pages] = node.number
        self._index_of[pages] = np.arange(start, start + len(pages))

    def _grow(
        self, node: RadixNode, tokens: NDArray[np.int32], pages: NDArray[np.int32]
    ) -> list[int]:
        """Append a run to a node: to its own run if it is a leaf."""
        start = node.start + len(node.pages)
        if node.children or node.parent is None:
            child = self._make(node, start, tokens.astype(np.int32), pages.astype(np.int32))
            node.add(child, self._page_size)
            node = child
        else:
            node.tokens = np.concatenate((node.tokens, tokens))
            node.pages = np.concatenate((node.pages, pages))
        self._place(node, pages, start)
        return list(pages.tolist())

    def _fill(self, node: RadixNode, pages: NDArray[np.int32]) -> list[int]:
        """Fill the holes at the beginning of a run with pages."""
        taken: list[int] = []
        for hole in np.flatnonzero(node.pages[: len(pages)] == HOLE).tolist():
            node.pages[hole] = pages[hole]
            self._place(node, pages[hole : hole + 1], node.start + hole)
            taken.append(int(pages[hole]))
        return taken

    def _shorten(self, node: RadixNode, length: int) -> None:
        """Truncate a run; its arrays are reallocated when half of them is unused."""
        node.pages = node.pages[:length]
        node.tokens = node.tokens[: length * self._page_size]
        if node.pages.base is not None and len(node.pages.base) > 2 * length:
            node.pages, node.tokens = node.pages.copy(), node.tokens.copy()

    def _split(self, node: RadixNode, length: int) -> None:
        """Split a run after so many pages, with the rest as a child."""
        tail = self._make(
            node,
            node.start + length,
            node.tokens[length * self._page_size :].copy(),
            node.pages[length:].copy(),
        )
        tail.keys, tail.children = node.keys, node.children
        for child in tail.children:
            child.parent = tail
        # Without holes, as index -1 would be the last page of the pool.
        self._node_of[tail.pages[tail.pages != HOLE]] = tail.number
        self._shorten(node, length)
        node.keys, node.children = [], []
        node.add(tail, self._page_size)

    def _join(self, node: RadixNode) -> None:
        """Merge a node with its only child."""
        (child,) = node.children
        # Without holes, as index -1 would be the last page of the pool.
        self._node_of[child.pages[child.pages != HOLE]] = node.number
        node.tokens = np.concatenate((node.tokens, child.tokens))
        node.pages = np.concatenate((node.pages, child.pages))
        node.keys, node.children = child.keys, child.children
        for grandchild in node.children:
            grandchild.parent = node
        del self._nodes[child.number]


def _ending(pages: list[int], size: int, page: int, common: int) -> Match:
    """Return a match that ends after so many tokens of a page."""
    whole = len(pages) * size
    if page == HOLE or not common:
        return Match(pages, whole)
    return Match([*pages, page], whole + common)
