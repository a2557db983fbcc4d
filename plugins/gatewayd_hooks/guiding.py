"""Guided decoding: a grammar says which tokens may come next.

A guide compiles what a request asks for into a ``Grammar``; each sequence follows it with a
``Matcher`` of its own. The engine calls both: ``compile`` in a thread beside the steps, matchers
once per step, beside the forward pass whose logits the mask is for.
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
"""What ``GuideSpec.text`` is.

* ``json_object``: empty; any JSON object.
* ``json_schema``: a JSON Schema (draft 2020-12).
* ``regex``: a regular expression that the whole answer matches.
* ``choice``: a JSON list of strings, one of which is the answer.
* ``grammar``: Lark or EBNF.
* ``structural_tag``: a JSON object ``{"triggers": [str], "structures": [{"begin": str, "schema":
  object, "end": str}], "at_least_one": bool, "stop_after_first": bool}``: free text, in which a
  trigger begins one of the structures; the last two keys are false where they are missing. With
  a ``"separator"``, a string, that stands between structures, and nothing else beside them.
* ``format``: several of the others put together, a JSON object that ``formats.read_format`` reads.
"""


class GuideSpec(NamedTuple):
    """What a request's answer must follow; equal ones are compiled once.

    Attributes:
        form: how to read ``text``.
        text: the schema, the expression, the grammar.
        is_compact: JSON in it has one blank at most between two of its parts, however the guide is
            set.
    """

    form: GuideForm
    text: str
    is_compact: bool = False


class GrammarRefused(Exception):
    """A grammar that cannot be compiled, or costs too much: its client gets 400 and this sentence.

    The sentence says what is wrong with it, or names the limit.
    """


class GuideFailed(Exception):
    """A sequence cannot be followed further: the sentence names the limit that it has reached.

    Its request ends with that sentence, and no other's.
    """


class Matcher(Protocol):
    """Follows one sequence through its grammar.

    Whatever it does may raise ``GuideFailed``; all it does afterwards raises it again.
    """

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by tokens, as far as the grammar allows them.

        An end token is accepted where the grammar may end, and ends it; more of them change
        nothing. Whatever ``fill`` allows is accepted.

        Returns:
            How many were accepted; after fewer than all the matcher stands behind those.
        """

    def rollback(self, count: int) -> None:
        """Take the last accepted tokens back, at most as many as were accepted."""

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next.

        Args:
            mask: a bit for each token, the lowest of the first word for token 0, shape
                ``[ceil(vocab_size / 32)]``, contiguous; written over as a whole. Where the grammar
                has ended only the model's end tokens are allowed; it is never all zeros. Where a
                token is forced it alone is allowed, even if others spell the same text.
        """

    def forced(self) -> Sequence[int]:
        """Tokens beside which ``fill`` allows none, in order; often none. Costs little."""

    def fork(self) -> Matcher:
        """Another one that stands where this one stands."""


class Grammar(Protocol):
    """What was compiled; shared by all who ask for the same, and by threads.

    It may tell in ``num_bytes``, an int, what memory it takes by now even if nobody follows it: an
    engine keeps 64 MiB of them for those who ask for the same.
    """

    def start(self) -> Matcher:
        """A matcher that stands at the beginning."""


class GuideStrategy(Strategy, Protocol):
    """Compiles grammars for the model's tokens."""

    def open(self, resources: EngineResources) -> None:
        """Read the tokenizer in ``resources.folder``.

        Needs no torch: a process without it checks requests in the same way before they reach an
        engine.
        """

    def compile(self, spec: GuideSpec) -> Grammar:
        """Compile, in any thread, several at once.

        Raises:
            GrammarRefused: it is wrong, asks for what this guide does not know, or is too large.
        """

    def fill_many(self, matchers: Sequence[Matcher], masks: NDArray[np.int32]) -> None:
        """``fill`` for several, in parallel where that is faster.

        Args:
            matchers: of this guide, none twice.
            masks: shape ``[n, ceil(vocab_size / 32)]``, contiguous.

        Raises:
            GuideFailed: at least one of them cannot go on; ``fill`` of each says which.
        """
