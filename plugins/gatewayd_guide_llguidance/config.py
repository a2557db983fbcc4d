"""Settings of ``[guide.llguidance]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class LlguidanceConfig(StrategyConfig):
    """Limits on the cost of one grammar."""

    text_bytes: int = setting(
        65_536,
        reload="hot",
        ge=1024,
        le=16_777_216,
        doc="Maximum size of a schema or another grammar in bytes, from 1024 to 16777216.",
    )
    depth: int = setting(
        64,
        reload="hot",
        ge=4,
        le=256,
        doc=(
            "Maximum nesting depth of objects and arrays in the JSON text of a schema, from 4 to "
            "256."
        ),
    )
    schemas: int = setting(
        2000,
        reload="hot",
        ge=10,
        le=4000,
        doc="Maximum number of subschemas in a schema, from 10 to 4000.",
    )
    any_whitespace: bool = setting(
        False,
        reload="hot",
        doc=(
            "Whether JSON answers may be indented; otherwise they have at most one blank between "
            "tokens."
        ),
    )
    whitespace: int = setting(
        40,
        reload="hot",
        ge=1,
        le=1000,
        doc=(
            "Maximum of consecutive whitespace characters in JSON answers with `any_whitespace`, "
            "from 1 to 1000."
        ),
    )
    compile_seconds: float = setting(
        1.5,
        reload="hot",
        gt=0,
        le=60,
        doc="Time limit for compiling a grammar in seconds, above 0 and up to 60.",
    )
    compile_fuel: int = setting(
        1_000_000,
        reload="hot",
        ge=10_000,
        le=100_000_000,
        doc=(
            "Limit on the work of compiling a grammar's regular expressions, from 10000 to "
            "100000000; about 50,000 units take a millisecond."
        ),
    )
    step_fuel: int = setting(
        200_000,
        reload="hot",
        ge=10_000,
        le=100_000_000,
        doc=(
            "Limit on the lexer's work for one token, from 10000 to 100000000; about 14,000 units "
            "take a millisecond."
        ),
    )
    step_items: int = setting(
        5000,
        reload="hot",
        ge=1000,
        le=10_000_000,
        doc=(
            "Limit on the parser's work for one token, from 1000 to 10000000 items; about 20,000 "
            "take a millisecond."
        ),
    )
    lexer_states: int = setting(
        50_000,
        reload="hot",
        ge=1000,
        le=10_000_000,
        doc=(
            "Maximum number of lexer states of a grammar, from 1000 to 10000000; each takes up to "
            "1 kB."
        ),
    )
    grammar_size: int = setting(
        200_000,
        reload="hot",
        ge=1000,
        le=10_000_000,
        doc="Maximum number of symbols in a grammar's rules, from 1000 to 10000000.",
    )
    threads: int = setting(
        0,
        reload="restart",
        ge=0,
        le=128,
        doc="Number of threads that compute slow masks of a step, up to 128; 0 uses most cores.",
    )

    def blanks(self, *, is_compact: bool) -> int:
        """Return the maximum of consecutive whitespace characters in JSON.

        Args:
            is_compact: whether a request asks for compact JSON.

        Forbidding whitespace would be shorter, but models write ``": "`` and ``":"`` as they were
        trained, and answers get worse where they must not. A weak model may not end longer runs.
        """
        return self.whitespace if self.any_whitespace and not is_compact else 1
