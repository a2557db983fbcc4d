"""Which test shows that a class of advisories has no hole here, where it is not one of this folder.

What a test is called says what it does; its class and the advisories are said here. Those of code
that is loaded, of routes, keys, requests and processes are in the other files of this folder.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]


class Shown(NamedTuple):
    """A class of advisories.

    Attributes:
        what: an advisory of it, and the hole.
        file: with the test, below ``tests``.
        test: its name.
    """

    what: str
    file: str
    test: str


SHOWN = [
    Shown(
        "CVE-2026-3059: a socket that reads whatever comes",
        "engine/test_frames.py",
        "test_bytes_that_are_no_event_are_a_frame_error",
    ),
    Shown(
        "CVE-2026-24208: a frame as long as it says it is",
        "engine/test_frames.py",
        "test_an_oversized_length_is_refused_before_its_bytes_arrive",
    ),
    Shown(
        "CVE-2026-5760: a model's template leaves its sandbox",
        "gatewayd/text/test_model.py",
        "test_a_template_cannot_leave_its_sandbox",
    ),
    Shown(
        "CVE-2026-54009: ids of other tenants' objects",
        "gatewayd/tenants/test_isolation.py",
        "test_files_of_another_tenant_are_not_there",
    ),
    Shown(
        "CVE-2026-54015: ids of other tenants' answers",
        "gatewayd/tenants/test_isolation.py",
        "test_responses_and_their_items_of_another_tenant_are_not_there",
    ),
    Shown(
        "CVE-2026-44561: a stream that outlives its key",
        "gatewayd/tenants/test_keys.py",
        "test_a_stream_of_a_revoked_key_ends_within_a_second",
    ),
    Shown(
        "CVE-2024-28224: a name that is bound to localhost",
        "gatewayd/http/test_guard.py",
        "test_a_foreign_host_sees_the_health_checks_alone",
    ),
    Shown(
        "CVE-2025-62593: another page that speaks to localhost",
        "gatewayd/http/test_cross_origin.py",
        "test_another_page_is_told_nothing",
    ),
    Shown(
        "CVE-2025-48956: headers without an end",
        "gatewayd/http/test_edge_limits.py",
        "test_headers_over_the_caps_are_431",
    ),
    Shown(
        "CVE-2026-55646: a body that is measured when it is there",
        "gatewayd/http/test_edge_limits.py",
        "test_a_body_over_the_limit_is_refused_before_and_while_it_comes",
    ),
    Shown(
        "CVE-2025-23310: a flood of tiny chunks",
        "gatewayd/http/test_edge_limits.py",
        "test_a_flood_of_tiny_chunks_is_refused",
    ),
    Shown(
        "slowloris: whoever sends a byte now and then",
        "gatewayd/http/test_edge.py",
        "test_slow_headers_and_bodies_are_cut_at_their_deadlines",
    ),
    Shown(
        "CVE-2025-30202: a slow reader who holds up the writer",
        "gatewayd/http/test_protocols.py",
        "test_a_slow_reader_is_not_read_ahead_for_and_cut_at_last",
    ),
    Shown(
        "CVE-2026-105757: a grammar's error that ends the engine",
        "engine/core/test_guide_faults.py",
        "test_a_matcher_that_raises_fails_its_own_request",
    ),
    Shown(
        "CVE-2025-48943: a grammar that nobody can compile",
        "engine/core/test_guide_faults.py",
        "test_a_grammar_that_is_refused_fails_its_request",
    ),
    Shown(
        "CVE-2026-55574: a grammar that takes for ever",
        "engine/core/test_guide_faults.py",
        "test_what_takes_too_long_is_given_up_and_others_are_compiled",
    ),
    Shown(
        "CVE-2025-57809: schemas within schemas",
        "gatewayd/http/test_tools.py",
        "test_deep_schemas_are_refused",
    ),
    Shown(
        "CVE-2025-46560: work that grows faster than its input",
        "gatewayd/http/test_large_lag.py",
        "test_a_large_body_keeps_nobody_waiting",
    ),
    Shown(
        "CVE-2026-44222: text that spells special tokens",
        "gatewayd/text/test_model.py",
        "test_a_special_token_spelled_in_a_message_stays_text",
    ),
    Shown(
        "CVE-2025-0317: a file of weights that says more than it has",
        "engine/model/test_loader.py",
        "test_a_corrupt_header_is_a_load_error",
    ),
    Shown(
        "CVE-2026-53923: memory that another's request left",
        "engine/core/test_nan.py",
        "test_pages_that_saw_a_nan_do_not_poison_their_next_owner",
    ),
    Shown(
        "CVE-2025-46570: the time of an answer tells what others have asked",
        "gatewayd/tenants/test_isolation.py",
        "test_an_identical_prompt_of_another_tenant_is_not_cached",
    ),
    Shown(
        "a flood of the KV cache gives up what others have cached",
        "engine/core/test_quotas.py",
        "test_cached_pages_below_the_floor_stay_whoever_floods_the_pool",
    ),
    Shown(
        "Fill and Squeeze: whoever fills the cache puts others out",
        "engine/core/test_quotas.py",
        "test_who_outgrows_its_ceiling_puts_out_its_own",
    ),
    Shown(
        "CVE-2020-7694: control characters in what people read",
        "tui/test_prefixes.py",
        "test_a_label_is_one_line_of_printable_text",
    ),
    Shown(
        "CVE-2026-114051: an engine that is dead and said to be well",
        "daemon/test_service.py",
        "test_a_hung_engine_is_no_life_until_it_is_declared_lost",
    ),
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.what)
def test_there_is_a_test_that_always_runs(shown: Shown) -> None:
    tree = ast.parse((TESTS / shown.file).read_text())
    found = {
        node.name: [ast.unparse(one) for one in node.decorator_list]
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert shown.test in found
    assert not any("slow" in one or "skip" in one for one in found[shown.test])
