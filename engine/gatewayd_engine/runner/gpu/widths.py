"""Slots of lines with drafts: to which widths they are padded, and how many a step may have.

Slot 0 of a line is its last token, the others are drafts.
"""

from __future__ import annotations

from gatewayd_engine.runner.gpu.draft_slots import MOST_SLOTS

MOST_CAPTURED = 512
"""Slots of a captured step; a larger one takes longer to compute than to launch."""
WIDTHS = (2, 3, 5, 9, 17, 33)
"""Slots of a line in captured steps: a last token and 1, 2, 4, 8, 16 or 32 drafts. Trees of Medusa
and EAGLE have up to 32 and 24 drafts with the default settings."""
_WIDER = (MOST_SLOTS,)
"""Those of lines that are not captured: attention is compiled for each width."""


def steps_of_widths() -> list[tuple[int, int]]:
    """The fewest slots that are padded to each width in steps that are not captured, and it."""
    widths = (*WIDTHS, *_WIDER)
    return [(before + 1, width) for before, width in zip((1, *widths), widths, strict=False)]


def padded(num_slots: int) -> int:
    """The width of lines of at most so many slots, in steps that are not captured."""
    return next(width for _, width in steps_of_widths() if width >= num_slots)


# What a step may have


def most_slots(max_lines: int) -> int:
    """Slots of a step in which any line has drafts, lines without drafts counted as one slot each.

    That is also the most rows of logits. All lines can have a draft. More of them do not pay on a
    GPU: from some 300 slots on (H100 in bfloat16) a step takes as long as it computes, not as long
    as its weights are read, so that a draft costs as much as a token, and is kept less often.
    """
    return max(2 * max_lines, MOST_CAPTURED)


def most_drafts(num_lines: int, max_lines: int) -> int:
    """Drafts that each of so many lines may have, so that a step has at most ``most_slots``.

    Args:
        num_lines: with drafts.
        max_lines: most sequences of a step.
    """
    drafts = (most_slots(max_lines) - max_lines) // max(num_lines, 1)
    return max(width - 1 for _, width in steps_of_widths() if width - 1 <= drafts)


def most_lines(fewest: int, width: int, max_lines: int, max_tokens: int) -> int:
    """How many lines of a step can be padded to a width; 0 if none can.

    One of them has more slots than the next smaller width, all others have a single draft.

    Args:
        fewest: slots that are padded to the width.
        width: see ``steps_of_widths``.
        max_lines: most sequences of a step.
        max_tokens: most tokens of a step.
    """
    allowed = (most_slots(max_lines) - max_lines) // (width - 1)
    return max(min(max_lines, allowed, 1 + (max_tokens - fewest) // 2), 0)


def most_padding(max_lines: int, max_tokens: int) -> int:
    """Slots of padding beside the tokens of a step."""
    most = 0
    for fewest, width in steps_of_widths():
        lines = most_lines(fewest, width, max_lines, max_tokens)
        if lines:
            most = max(most, lines * width - fewest - 2 * (lines - 1))
    return most


# What is captured


def captured_sizes(width: int, max_lines: int) -> list[int]:
    """How many lines of so many slots are captured: powers of two, as far as slots go."""
    most = min(max_lines, MOST_CAPTURED // width)
    return sorted({1 << bit for bit in range(most.bit_length())} | {most}) if most else []


def captured_widths(max_lines: int) -> list[int]:
    """Slots of a line in captured steps, the most first."""
    return [width for width in WIDTHS[::-1] if captured_sizes(width, max_lines)]


def num_captured(max_lines: int) -> int:
    """How many graphs there are for lines with drafts."""
    return sum(len(captured_sizes(width, max_lines)) for width in WIDTHS)


def most_captured(max_lines: int) -> int:
    """Slots of the largest of them."""
    return max(width * max(captured_sizes(width, max_lines), default=0) for width in WIDTHS)


def captured_slots(max_lines: int) -> set[int]:
    """Slots of each of them, padding too: as many rows have its matrix products."""
    return {width * lines for width in WIDTHS for lines in captured_sizes(width, max_lines)}
