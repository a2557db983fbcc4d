"""Page tree columns: equal the evictions' bookkeeping, page by page."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gatewayd_engine.kv.page_tree import NO_PARENT, PageTree
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.helpers.lineage import Lineage

PAGES = 3
EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, PAGES - 1), st.integers(-1, PAGES - 1)), max_size=60
)


@given(EVENTS)
@example([(True, 0, -1), (True, 1, 0), (False, 0, -1), (True, 0, -1)])
def test_a_page_given_to_somebody_else_is_nobodys_parent(
    events: list[tuple[bool, int, int]],
) -> None:
    standing, lineage = PageTree(PAGES), Lineage(PAGES)
    known = np.zeros(PAGES, np.bool_)
    for comes, page, parent in events:
        if comes and not known[page] and parent != page:
            before = parent if parent >= 0 and known[parent] else NO_PARENT
            standing.add(page, PageOrigin(before, 0))
            lineage.add(page, before)
            known[page] = True
        elif not comes and known[page]:
            lineage.drop(page)
            known[page] = False
        parents = standing.parents(known).tolist()
        for one in np.flatnonzero(known).tolist():
            assert parents[one] == lineage.parent(one)
