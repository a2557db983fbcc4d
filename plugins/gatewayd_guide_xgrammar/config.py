"""Settings of ``[guide.xgrammar]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class XgrammarConfig(StrategyConfig):
    """What one grammar may cost."""

    text_bytes: int = setting(
        32_768, reload="hot", ge=1024, le=16_777_216, doc="Bytes of a schema or another grammar."
    )
    depth: int = setting(
        64,
        reload="hot",
        ge=4,
        le=256,
        doc="Objects and arrays in each other that a schema may have.",
    )
    schemas: int = setting(
        1000, reload="hot", ge=10, le=4000, doc="Schemas within one another that a schema may have."
    )
    any_whitespace: bool = setting(
        False,
        reload="hot",
        doc="JSON may be indented; otherwise it has one blank at most between two of its parts.",
    )
    whitespace: int = setting(
        40,
        reload="hot",
        ge=1,
        le=1000,
        doc="Spaces and line ends in a row that JSON may have with `any_whitespace`.",
    )
    compile_seconds: float = setting(
        1.5, reload="hot", gt=0, le=60, doc="Seconds that compiling may take."
    )
    threads: int = setting(
        1, reload="restart", ge=1, le=128, doc="Threads that compile a grammar or fill masks."
    )

    def blanks(self, *, is_compact: bool) -> int:
        """Spaces and line ends in a row that JSON may have.

        Args:
            is_compact: whether a request asks for few.

        None at all would be shorter, but models write ``": "`` and ``":"`` as they have learnt it,
        and say worse things where they must not. Of longer runs a weak model finds no end.
        """
        return self.whitespace if self.any_whitespace and not is_compact else 1
