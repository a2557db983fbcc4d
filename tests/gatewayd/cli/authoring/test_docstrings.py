"""Docstrings: converted to Markdown without loss."""

from __future__ import annotations

import ast

from gatewayd.cli.authoring.docstrings import fields_of, markdown, plain

DOCSTRING = """Choose ``one``.

Twice,
if need be.

Args:
    view: what is seen,
        and more of it.
    slot: where.

Returns:
    The ``index``
    of one.

Raises:
    LookupError: there is none.
"""


def test_sections_become_lists() -> None:
    assert markdown(DOCSTRING, indent="  ").splitlines() == [
        "Choose `one`.",
        "",
        "  Twice, if need be.",
        "  - `view`: what is seen, and more of it.",
        "  - `slot`: where.",
        "  - returns: The `index` of one.",
        "  - raises `LookupError`: there is none.",
    ]


def test_a_line_keeps_what_is_returned() -> None:
    assert plain(DOCSTRING) == "Choose `one`. Twice, if need be. Returns: The `index` of one."
    assert plain(None) == ""


def test_fields_are_told_beside_them_or_above() -> None:
    (node,) = ast.parse(
        'class A:\n    """A.\n\n    Attributes:\n        x: the ``first``.\n    """\n\n'
        '    x: int\n    y: int = 2\n    """The\n    second."""\n    z = 3\n    _own = 4\n'
    ).body
    assert isinstance(node, ast.ClassDef)
    assert fields_of(node) == [("x", "the `first`."), ("y", "The second."), ("z", "")]
