"""Form fields: accept what the API accepts, and show current values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.wire.requests import LimitsBody
from gatewayd.wire.tenants import KeyBody, RotateBody, TenantBody, TenantTerms
from gatewayd_tui.form_fields import (
    FormField,
    InvalidInput,
    as_typed,
    changed_values,
    docs_of,
    form_fields,
    nest,
)

BODIES: list[type[msgspec.Struct]] = [TenantBody, TenantTerms, KeyBody, RotateBody]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers(-(10**16), 10**16).map(str),
    st.decimals(-(10**4), 10**11, places=6, allow_nan=False).map(str),
    st.sampled_from(["none", "1e5", "12h", "90d", "1_000", "inf", "nan", "a b", "٣", "0x10"]),
)


def named(name: str, body: type[msgspec.Struct] = TenantTerms) -> FormField:
    (found,) = [each for each in form_fields(body) if each.name == name]
    return found


@pytest.mark.parametrize("body", BODIES)
@given(data=st.data())
def test_what_is_let_through_is_taken_by_the_body(body: type[Any], data: st.DataObject) -> None:
    asked = form_fields(body)
    texts = {each.name: data.draw(TEXTS, each.name) for each in asked}
    try:
        values = changed_values(asked, texts)
    except InvalidInput as wrong:
        name, sentence = wrong.name, str(wrong)
    else:
        msgspec.convert(nest(body, values), body)
        return
    assert sentence.startswith(f"{name} is ")
    assert named(name, body).hint in sentence


TERMS = st.fixed_dictionaries(
    {
        "weight": st.sampled_from([0.01, 0.5, 1.0, 2.25, 100.0]),
        "requests_per_minute": st.none() | st.integers(1, 10**9),
        "most_tokens": st.none() | st.integers(0, 10**15),
        "most_micros": st.none() | st.integers(0, 10**15),
    }
)


@given(TERMS, TERMS)
def test_only_what_differs_is_sent_and_typing_a_value_gives_it(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    asked = [each for each in form_fields(TenantTerms, before) if each.name in before]
    texts = {name: "" if value is None else as_typed(name, value) for name, value in after.items()}
    differing = {name: value for name, value in after.items() if value != before[name]}
    assert changed_values(asked, texts) == differing


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("weight", "2", 2.0),
        ("concurrency", " 1_000 ", 1000),
        ("concurrency", "none", None),
        ("concurrency", "", None),
        ("most_micros", "12.5", 12_500_000),
        ("most_micros", "0.000001", 1),
        ("most_micros", "0.1", 100_000),
    ],
)
def test_a_value_is_read_as_people_write_it(name: str, text: str, value: object) -> None:
    assert named(name).value(text) == value


@pytest.mark.parametrize(("text", "value"), [("90d", 90 * 86_400), ("12h", 43_200), ("60", 60)])
def test_a_time_has_a_unit_or_is_seconds(text: str, value: int) -> None:
    assert named("seconds", KeyBody).value(text) == value
    assert named("overlap_seconds", RotateBody).value(text if value < 7 * 86_400 else "7d")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("weight", "0", "weight is '0'; it must be a number from 0.01 to 100"),
        ("weight", "", "weight is ''; it must be a number from 0.01 to 100"),
        (
            "concurrency",
            "many",
            "concurrency is 'many'; it must be a whole number from 1 to 1,000,000,000, or none",
        ),
        (
            "most_micros",
            "1.2345678",
            "most_micros is '1.2345678'; it must be an amount such as 12.50 from 0 to "
            "1,000,000,000, with at most 6 decimals, or none",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_limit(name: str, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        named(name).value(text)
    assert str(raised.value) == sentence


def test_what_is_needed_and_missing_is_named() -> None:
    with pytest.raises(
        InvalidInput, match="tenant is missing; it must be text of at most 128 characters"
    ):
        changed_values(form_fields(TenantBody), {each.name: "" for each in form_fields(TenantBody)})


def test_a_body_within_another_is_asked_for_line_by_line() -> None:
    values = {"tenant": "acme", "concurrency": 3}
    assert nest(TenantBody, values) == {"tenant": "acme", "terms": {"concurrency": 3}}


def test_null_is_no_word_where_it_only_says_nothing() -> None:
    found = form_fields(LimitsBody, {"max_batch_tokens": 512.0}, nullable=False)
    assert not any(each.takes_none for each in found)
    assert found[0].now == "512"


def test_what_a_line_is_for_comes_from_the_docstring() -> None:
    assert docs_of(RotateBody) == {}
    assert docs_of(TenantTerms)["tokens_per_minute"] == (
        "rate limit of prompt and completion tokens."
    )
