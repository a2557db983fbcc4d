"""Settings of ``[guide.llguidance]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class LlguidanceConfig(StrategyConfig):
    """What one grammar may cost."""

    text_bytes: int = setting(
        65_536, reload="hot", ge=1024, le=16_777_216, doc="Bytes of a schema or another grammar."
    )
    depth: int = setting(
        64,
        reload="hot",
        ge=4,
        le=256,
        doc="Objects and arrays in each other that a schema may have.",
    )
    schemas: int = setting(
        2000, reload="hot", ge=10, le=4000, doc="Schemas within one another that a schema may have."
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
    compile_fuel: int = setting(
        1_000_000,
        reload="hot",
        ge=10_000,
        le=100_000_000,
        doc="What reading a grammar's expressions may cost; about 50,000 are a millisecond.",
    )
    step_fuel: int = setting(
        200_000,
        reload="hot",
        ge=10_000,
        le=100_000_000,
        doc="What a next token may cost the expressions; about 14,000 are a millisecond.",
    )
    step_items: int = setting(
        5000,
        reload="hot",
        ge=1000,
        le=10_000_000,
        doc="The same of the parser; about 20,000 are a millisecond.",
    )
    lexer_states: int = setting(
        50_000,
        reload="hot",
        ge=1000,
        le=10_000_000,
        doc="States of a grammar's expressions; each takes up to 1 kB.",
    )
    grammar_size: int = setting(
        200_000, reload="hot", ge=1000, le=10_000_000, doc="Symbols of a grammar's rules."
    )
    threads: int = setting(
        0,
        reload="restart",
        ge=0,
        le=128,
        doc="Threads for the masks of a step that would take long; 0 takes one for most cores.",
    )

    def blanks(self, *, is_compact: bool) -> int:
        """Spaces and line ends in a row that JSON may have.

        Args:
            is_compact: whether a request asks for few.

        None at all would be shorter, but models write ``": "`` and ``":"`` as they have learnt it,
        and say worse things where they must not. Of longer runs a weak model finds no end.
        """
        return self.whitespace if self.any_whitespace and not is_compact else 1
