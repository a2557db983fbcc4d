"""Context splits: whether contexts are divided between multiprocessors."""

from __future__ import annotations

from gatewayd_engine.kernels.attention.splits import fills


def test_an_h200_is_full_from_34_lines_of_8_key_heads() -> None:
    assert [fills(lines * 8, 132) for lines in (1, 33, 34, 256)] == [False, False, True, True]
