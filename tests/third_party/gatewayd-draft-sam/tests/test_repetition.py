"""Against the search that looks everywhere."""

import numpy as np
import pytest
from gatewayd_hooks.speculation import DraftBatch
from gatewayd_hooks.testing.samples.campaign import campaign
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_draft_sam.automaton import SuffixAutomaton
from gatewayd_draft_sam.config import SamSettings
from gatewayd_draft_sam.strategy import SamDrafter

TEXT = st.lists(st.integers(0, 2), max_size=40)


def searched(tokens: list[int]) -> tuple[int, int]:
    """The longest suffix that ends earlier too, and where it first does."""
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        for end in range(length, len(tokens)):
            if tokens[end - length : end] == suffix:
                return length, end
    return 0, 0


@campaign
@given(tokens=TEXT)
def test_the_automaton_finds_what_a_search_finds_after_every_token(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for i, token in enumerate(tokens):
        automaton.extend([token])
        assert automaton.repeated() == searched(tokens[: i + 1])
    assert len(automaton) == len(tokens)


def test_its_states_are_at_most_twice_the_tokens() -> None:
    tokens = np.random.default_rng(0).integers(0, 4, 5000).tolist()
    automaton = SuffixAutomaton()
    automaton.extend(tokens)
    assert len(automaton._link) <= 2 * len(tokens)


def ask(drafter: SamDrafter, text: str, limit: int = 5) -> str:
    """Draft for one sequence, letters for tokens."""
    letters = np.array([[ord(letter) for letter in text]], np.int32)
    batch = DraftBatch(
        rows=np.array([0]),
        lengths=np.array([len(text)]),
        limits=np.array([limit]),
        tokens=letters,
        temperature=np.zeros(1, np.float32),
        uniform=np.zeros((1, limit)),
    )
    drafts = drafter.propose(batch)
    return "".join(map(chr, drafts.tokens[0, : drafts.counts[0]]))


@pytest.mark.parametrize(
    ("text", "min_match", "guess"),
    [
        ("def main(): pass\ndef ma", 2, "in():"),
        ("abcdabcxbc", 2, "dabcx"),
        ("abcdabcxbc", 3, ""),
        ("abab", 2, "ab"),
        ("abcd", 1, ""),
        ("a", 1, ""),
    ],
)
def test_what_followed_is_guessed(text: str, min_match: int, guess: str) -> None:
    assert ask(SamDrafter(SamSettings(min_match=min_match)), text) == guess


def test_a_sequence_may_grow_by_many_tokens_between_two_guesses() -> None:
    drafter = SamDrafter(SamSettings())
    assert ask(drafter, "one two th") == ""
    assert ask(drafter, "one two three one t") == "wo th"
    drafter.admit(0)
    assert ask(drafter, "one") == ""
