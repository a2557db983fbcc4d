"""Hostile review findings: the tests that fail if one returns.

Each stands for a class; ``docs/threat-model.md`` says what is promised of it, and to whom.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"


class Finding(NamedTuple):
    """One of them.

    Attributes:
        what: was found.
        promise: the heading of the threat model that it broke.
        tests: each ``file::name``, below ``tests``.
    """

    what: str
    promise: str
    tests: tuple[str, ...]


_HOSTILE = "security/hostile/test_hostile.py"
_CHARGES = "daemon/test_charged_usage.py"
_GATE = "gatewayd/http/server/test_request_gate.py"

FINDINGS = {
    1: Finding(
        "pipelined requests whose answers nobody reads take memory and the event loop",
        "A connection without a key",
        (
            f"{_HOSTILE}::test_one_kind_of_neighbour_hurts_nobody",
            "daemon/test_flood.py::test_requests_whose_answers_nobody_reads_cost_little",
            "gatewayd/http/server/test_edge_chunks.py"
            "::test_any_pieces_get_the_answers_of_one_request_for_each_connection",
        ),
    ),
    2: Finding(
        "code in the working folder is run by engines",
        "A checkpoint",
        (
            "security/test_child_processes.py::test_nothing_of_the_working_folder_is_run",
            "security/test_child_processes.py::test_no_command_reads_the_working_folder",
            "security/test_sources.py::test_every_process_is_started_in_one_place",
        ),
    ),
    3: Finding(
        "prompts are computed and never charged",
        "An API key",
        (
            f"{_HOSTILE}::test_engine_time_is_charged_whoever_left",
            f"{_CHARGES}::test_leaving_within_the_first_step_is_charged_and_holds_every_limit",
            f"{_CHARGES}::test_every_route_is_charged_for_what_its_clients_leave",
        ),
    ),
    4: Finding(
        "one rate-limited batch stops all other tenants' batches",
        "An API key",
        (
            f"{_HOSTILE}::test_a_batch_passes_one_that_is_rate_limited",
            "gatewayd/resources/batches/test_tenant_isolation.py"
            "::test_a_tenant_at_its_limit_is_in_nobodys_way_and_costs_next_to_nothing",
        ),
    ),
    5: Finding(
        "a full disk ends the daemon, which does not start again",
        "A process of gatewayd",
        ("daemon/test_full_disk.py::test_a_full_disk_ends_no_daemon_and_budgets_stay_exact",),
    ),
    6: Finding(
        "nothing before the pipeline counts against a limit",
        "An API key",
        (
            f"{_HOSTILE}::test_every_route_counts_against_the_limits",
            f"{_HOSTILE}::test_a_long_text_waits_for_no_flood_of_texts",
            f"{_HOSTILE}::test_a_schema_waits_for_no_bombs",
            f"{_GATE}::test_every_post_route_counts_and_is_refused_before_its_body_is_read",
            "security/test_linear_time.py::test_the_time_that_a_text_takes_is_in_proportion_to_its_length",
        ),
    ),
    7: Finding(
        "one tenant fills the store for all",
        "An API key",
        (
            f"{_HOSTILE}::test_who_fills_the_store_fills_it_for_nobody_else",
            "gatewayd/store/test_tenant_shares.py"
            "::test_nobody_is_refused_its_part_however_the_others_take",
        ),
    ),
    8: Finding(
        "a batch of line ends takes more than half of a core",
        "An API key",
        (
            f"{_HOSTILE}::test_line_ends_cost_no_processor",
            "gatewayd/resources/batches/test_inputs.py::test_a_file_of_line_ends_is_refused_at_once",
        ),
    ),
    9: Finding(
        "watermark detection looks with nobody's key",
        "An API key",
        ("daemon/test_watermark.py::test_each_tenant_finds_its_own_mark_and_no_other",),
    ),
    10: Finding(
        "an older end of the audit hides changes",
        "Anyone with write access to the database",
        (
            "security/test_audit.py::test_an_older_end_is_no_way_back",
            "security/test_seals.py::test_every_edit_of_every_column_is_found",
            "security/test_seals.py"
            "::test_parts_of_an_older_store_never_pass_unless_all_of_it_is_put_back",
            "security/test_edited_reservations.py"
            "::test_a_killed_daemons_requests_cost_what_was_delivered_whatever_its_rows_say",
        ),
    ),
    11: Finding(
        "the same fault of the audit is told once and never again",
        "Anyone with write access to the database",
        ("security/test_audit.py::test_the_same_fault_once_more_is_on_record_once_more",),
    ),
    12: Finding(
        "a chain of stored responses is read into memory whole",
        "An API key",
        (
            f"{_HOSTILE}::test_one_kind_of_neighbour_hurts_nobody",
            "gatewayd/resources/responses/test_previous_responses.py::test_what_is_too_much_is_not_read",
        ),
    ),
    13: Finding(
        "nested offers of an upgrade end in a RecursionError and fill the log",
        "A connection without a key",
        (
            "gatewayd/http/server/test_edge_chunks.py::test_offers_in_one_write_are_read_one_by_one",
            "gatewayd/tracing/test_log_rate_limit.py"
            "::test_a_request_that_always_fails_does_not_fill_the_journal",
        ),
    ),
    14: Finding(
        "a key of another model may count, render and read templates",
        "An API key",
        (f"{_GATE}::test_a_key_of_another_model_gets_nothing_of_this_one",),
    ),
    15: Finding(
        "a key's expiry and rotation end no stream",
        "An API key",
        (
            "gatewayd/tenants/test_live_key.py::test_a_keys_expiry_ends_its_streams_at_their_time",
            "gatewayd/tenants/test_live_key.py"
            "::test_a_rotation_ends_the_streams_of_the_old_secret_only",
        ),
    ),
    16: Finding(
        "the operator's key is in the environment of engines",
        "A process of gatewayd",
        ("security/test_child_processes.py::test_children_have_what_is_listed_and_no_secret",),
    ),
    17: Finding(
        "answers that are not streamed are settled at nothing after a kill",
        "An API key",
        (f"{_CHARGES}::test_a_killed_daemons_answers_are_charged_streamed_or_not",),
    ),
    18: Finding(
        "time tells which grammars others have used",
        "An API key",
        (
            "gatewayd/engines/grammar_checks/test_tenants.py"
            "::test_an_answer_is_known_to_the_tenant_that_has_asked_and_to_no_other",
            "engine/core/guides/test_guide_tenants.py::test_each_tenant_has_a_grammar_compiled_once",
        ),
    ),
    19: Finding(
        "lists and promises are out of date; rights bound no class of service; no lock file",
        "An API key",
        (
            "security/test_advisories.py::test_what_is_not_here_has_not_come_since",
            "security/test_library_internals.py::test_every_private_part_of_a_library_is_listed",
            "packaging/test_lock.py::test_an_installation_takes_files_by_their_hashes",
            "gatewayd/tenants/test_grants.py"
            "::test_every_field_of_every_route_that_buys_urgency_or_cache_is_bound",
        ),
    ),
}


def test_all_nineteen_are_listed() -> None:
    assert list(FINDINGS) == list(range(1, 20))


@pytest.mark.parametrize("number", FINDINGS)
def test_a_finding_has_tests_and_a_promise(number: int) -> None:
    finding = FINDINGS[number]
    assert f"### {finding.promise}\n" in PAGE.read_text("utf-8")
    for one in finding.tests:
        file, _, name = one.partition("::")
        source = (ROOT / "tests" / file).read_text("utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), one
