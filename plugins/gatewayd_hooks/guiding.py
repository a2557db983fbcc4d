"""Guided decoding: a grammar restricts which tokens may come next.

A guide compiles what a request asks for into a ``Grammar``; each sequence follows it with a
``Matcher`` of its own. The engine calls both: ``compile`` in a thread concurrently with steps,
matchers once per step, concurrently with the forward pass whose logits are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

GuideForm = Literal[
    "json_object", "json_schema", "regex", "choice", "grammar", "structural_tag", "format"
]
"""Format of ``GuideSpec.text``.

* ``json_object``: empty; any JSON object.
* ``json_schema``: a JSON Schema (draft 2020-12).
* ``regex``: a regular expression that the whole answer matches.
* ``choice``: a JSON list of strings, one of which is the answer.
* ``grammar``: Lark or EBNF.
* ``structural_tag``: a JSON object ``{"triggers": [str], "structures": [{"begin": str, "schema":
  object, "end": str}], "at_least_one": bool, "stop_after_first": bool}``: free text in which a
  trigger begins one of the structures; the last two keys default to false. With ``"separator"``, a
  string, the text consists of structures separated by it and nothing else.
* ``format``: a combination of the others, as a JSON object that ``formats.read_format`` parses.
"""


class GuideSpec(NamedTuple):
    """Constraint on a request's answer; equal specs are compiled once.

    Attributes:
        form: format of ``text``.
        text: the schema, the expression, the grammar.
        is_compact: whether JSON in the answer has at most one blank between tokens, whatever the
            settings of the guide.
    """

    form: GuideForm
    text: str
    is_compact: bool = False


class GrammarRefused(Exception):
    """Raised for a grammar that cannot be compiled or is too costly: the client gets 400.

    The message, which the client gets, says what is wrong, or which limit the grammar exceeds.
    """


class GuideFailed(Exception):
    """Raised when a sequence cannot be followed further; the message names the limit reached.

    Only the affected request ends, with that message.
    """


class Matcher(Protocol):
    """State of one sequence within its grammar.

    Every method may raise ``GuideFailed``; later calls then raise it again.
    """

    def accept(self, tokens: Sequence[int]) -> int:
        """Advance by tokens, as far as the grammar allows them.

        An end token is accepted where the grammar may end, and ends it; further end tokens change
        nothing. Whatever ``fill`` allows is accepted.

        Returns:
            Number of accepted tokens; if not all were accepted, the matcher is positioned after
            those that were.
        """

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepted tokens, at most as many as were accepted."""

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the mask of allowed next tokens.

        Args:
            mask: a bit per token, the lowest bit of the first word for token 0, shape
                ``[ceil(vocab_size / 32)]``, contiguous; overwritten completely. Where the grammar
                has ended only the model's end tokens are allowed; it is never all zeros. Where a
                token is forced only that token is allowed, even if others spell the same text.
        """

    def forced(self) -> Sequence[int]:
        """Return the tokens to which ``fill`` allows no alternative, in order; often none.

        This is cheap.
        """

    def fork(self) -> Matcher:
        """Return an independent matcher in the same state."""


class Grammar(Protocol):
    """Compiled grammar; shared by all requests with an equal spec, and by threads.

    It may have an int ``num_bytes``, the memory that it uses even when no sequence follows it: an
    engine caches up to 64 MiB of such grammars for later requests.
    """

    def start(self) -> Matcher:
        """Return a matcher in the initial state."""


class GuideStrategy(Strategy, Protocol):
    """Compiles grammars for the model's tokens."""

    def open(self, resources: EngineResources) -> None:
        """Read the tokenizer in ``resources.folder``.

        Does not need torch: a process without it checks requests in the same way before they reach
        an engine.
        """

    def compile(self, spec: GuideSpec) -> Grammar:
        """Compile a grammar; called in any thread, concurrently.

        Raises:
            GrammarRefused: it is invalid, uses a feature that this guide does not support, or is
                too large.
        """

    def fill_many(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """Call ``fill`` for several matchers, in parallel where that is faster.

        Args:
            matchers: of this guide, without duplicates.
            masks: shape ``[n, ceil(vocab_size / 32)]``, contiguous.

        Raises:
            GuideFailed: at least one of them cannot go on; calling ``fill`` on each tells which.
        """
