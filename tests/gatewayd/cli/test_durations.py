"""Durations on the command line: parsed and formatted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer

from gatewayd.cli.durations import seconds_of, whole_seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604_800)],
)
def test_spans_of_an_operator(text: str, seconds: float) -> None:
    assert seconds_of("--for", text) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("0s", 0), ("12h", 43_200), ("400d", 34_560_000)])
def test_whole_spans_are_of_any_length(text: str, seconds: int) -> None:
    assert whole_seconds_of("--last", text) == seconds


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [
        (seconds_of, "0s", "--x 0s is not a time such as"),
        (seconds_of, "soon", "--x soon is not a time such as"),
        (seconds_of, "7.1d", "--x 7.1d is too long: at most 7d"),
        (whole_seconds_of, "1.5h", "--x 1.5h is not a time such as"),
        (whole_seconds_of, "", "--x  is not a time such as"),
    ],
)
def test_what_is_no_span_ends_the_command(
    parse: Callable[[str, str], float], text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        parse("--x", text)
    assert caught.value.exit_code == 2
    assert told in capsys.readouterr().err
