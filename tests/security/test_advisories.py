"""Advisory classes: the tests outside this folder that cover them.

What a test is called says what it does; its class and the advisories are said here. Those of code
that is loaded, of routes, keys, requests and processes are in the other files of this folder.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.security.test_sources import ROOT, ROOTS

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


class Absent(NamedTuple):
    """Something that is not here.

    Attributes:
        why: a class of advisories has nothing to be of.
        sign: what would be in the source of whoever adds it, as an expression.
        where: it is looked for.
    """

    why: str
    sign: str
    where: tuple[str, ...] = ROOTS


SHOWN = [
    Shown(
        "CVE-2026-3059: a socket that reads whatever comes",
        "engine/process/test_frames.py",
        "test_bytes_that_are_no_event_are_a_frame_error",
    ),
    Shown(
        "CVE-2026-24208: a frame as long as it says it is",
        "engine/process/test_frames.py",
        "test_an_oversized_length_is_refused_before_its_bytes_arrive",
    ),
    Shown(
        "CVE-2026-5760: a model's template leaves its sandbox",
        "gatewayd/text/test_text_model.py",
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
        "test_a_stream_of_a_revoked_key_ends_at_once",
    ),
    Shown(
        "CVE-2024-28224: a name that is bound to localhost",
        "gatewayd/http/server/test_authentication.py",
        "test_a_foreign_host_sees_the_health_checks_alone",
    ),
    Shown(
        "CVE-2025-62593: another page that speaks to localhost",
        "gatewayd/http/server/test_cors.py",
        "test_another_page_is_told_nothing",
    ),
    Shown(
        "CVE-2025-48956: headers without an end",
        "gatewayd/http/server/test_edge_limits.py",
        "test_headers_over_the_caps_are_431",
    ),
    Shown(
        "CVE-2026-55646: a body that is measured when it is there",
        "gatewayd/http/server/test_edge_limits.py",
        "test_a_body_over_the_limit_is_refused_before_and_while_it_comes",
    ),
    Shown(
        "CVE-2025-23310: a flood of tiny chunks",
        "gatewayd/http/server/test_edge_limits.py",
        "test_a_flood_of_tiny_chunks_is_refused",
    ),
    Shown(
        "slowloris: whoever sends a byte now and then",
        "gatewayd/http/server/test_edge.py",
        "test_slow_headers_and_bodies_are_cut_at_their_deadlines",
    ),
    Shown(
        "CVE-2025-30202: a slow reader who holds up the writer",
        "gatewayd/http/protocols/test_protocols.py",
        "test_a_slow_reader_is_not_read_ahead_for_and_cut_at_last",
    ),
    Shown(
        "CVE-2026-105757: a grammar's error that ends the engine",
        "engine/core/guides/test_guide_faults.py",
        "test_a_matcher_that_raises_fails_its_own_request",
    ),
    Shown(
        "CVE-2025-48943: a grammar that nobody can compile",
        "engine/core/guides/test_guide_faults.py",
        "test_a_grammar_that_is_refused_fails_its_request",
    ),
    Shown(
        "CVE-2026-55574: a grammar that takes for ever",
        "engine/core/guides/test_guide_faults.py",
        "test_what_takes_too_long_is_given_up_and_others_are_compiled",
    ),
    Shown(
        "CVE-2025-57809: schemas within schemas",
        "gatewayd/http/openai/test_tools.py",
        "test_deep_schemas_are_refused",
    ),
    Shown(
        "CVE-2025-46560: work that grows faster than its input",
        "gatewayd/http/test_large_body_lag.py",
        "test_a_large_body_keeps_nobody_waiting",
    ),
    Shown(
        "CVE-2026-44222: text that spells special tokens",
        "gatewayd/text/test_text_model.py",
        "test_a_special_token_spelled_in_a_message_stays_text",
    ),
    Shown(
        "CVE-2025-0317: a file of weights that says more than it has",
        "engine/model/test_loader.py",
        "test_a_corrupt_header_is_a_load_error",
    ),
    Shown(
        "CVE-2025-53630: a header of GGUF that says more than it has",
        "engine/model/test_gguf_header.py",
        "test_whatever_it_says_it_is_read_or_refused_in_little_memory",
    ),
    Shown(
        "a file of GGUF that is cut",
        "engine/model/test_gguf_header.py",
        "test_every_cut_is_noticed",
    ),
    Shown(
        "CVE-2026-53923: memory that another's request left",
        "engine/core/faults/test_nan.py",
        "test_pages_that_saw_a_nan_do_not_poison_their_next_owner",
    ),
    Shown(
        "CVE-2025-46570: the time of an answer tells what others have asked",
        "gatewayd/tenants/test_isolation.py",
        "test_an_identical_prompt_of_another_tenant_is_not_cached",
    ),
    Shown(
        "a flood of the KV cache gives up what others have cached",
        "engine/core/scheduling/test_quotas.py",
        "test_cached_pages_below_the_floor_stay_whoever_floods_the_pool",
    ),
    Shown(
        "Fill and Squeeze: whoever fills the cache puts others out",
        "engine/core/scheduling/test_quotas.py",
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
    Shown(
        "GHSA-5mg7-485q-xm76: a wheel that runs code at every start",
        "contract/test_pth_files.py",
        "test_a_distribution_whose_files_run_code_at_every_start_is_not_loaded",
    ),
    Shown(
        "vLLM's cache folder: what others can write is believed",
        "plugins/tier_disk/test_folder.py",
        "test_a_folder_that_others_may_write_to_is_refused",
    ),
    Shown(
        "a link that was planted in a cache folder",
        "plugins/tier_disk/test_folder.py",
        "test_no_link_leads_out_of_the_folder",
    ),
    Shown(
        "CVE-2025-9141: what a model says is evaluated",
        "security/test_outputs.py",
        "test_no_word_of_a_model_is_run",
    ),
    Shown(
        "CVE-2025-24357: weights that are pickles",
        "engine/model/test_loader.py",
        "test_formats_that_run_code_are_refused",
    ),
    Shown(
        "CVE-2025-66448: code of a checkpoint",
        "security/test_outputs.py",
        "test_code_of_a_checkpoint_is_not_run",
    ),
    Shown(
        "code beside the weights, where the daemon is started",
        "security/test_child_processes.py",
        "test_nothing_of_the_working_folder_is_run",
    ),
    Shown(
        "keys in the environment of what computes",
        "security/test_child_processes.py",
        "test_children_have_what_is_listed_and_no_secret",
    ),
    Shown(
        "a compiler of grammars that was taken over",
        "security/test_child_processes.py",
        "test_what_compiles_grammars_has_given_up_the_rest",
    ),
    Shown(
        "a library's release that takes a limit away",
        "security/test_library_internals.py",
        "test_a_connection_has_the_methods_that_the_edge_knows",
    ),
    Shown(
        "a file of a package that is not what it was",
        "packaging/test_lock.py",
        "test_an_installation_takes_files_by_their_hashes",
    ),
    Shown(
        "CVE-2026-7482: a header of weights that is a bomb",
        "security/test_outputs.py",
        "test_a_file_of_weights_that_says_more_than_it_has_is_refused",
    ),
    Shown(
        "a tokenizer that is a bomb",
        "security/test_outputs.py",
        "test_a_tokenizer_that_is_a_bomb_is_refused",
    ),
    Shown(
        "CVE-2025-61620: a template that takes all time or memory",
        "gatewayd/text/test_template_bounds.py",
        "test_what_takes_too_much_is_refused_before_it_has_it",
    ),
    Shown(
        "CVE-2026-48746: a path that is written in another way",
        "security/test_paths.py",
        "test_no_way_to_write_a_path_comes_past_the_key",
    ),
    Shown(
        "CVE-2026-48710: a host that is none",
        "gatewayd/http/server/test_authentication.py",
        "test_a_host_that_is_none_is_refused_on_every_route",
    ),
    Shown(
        "CVE-2026-48817: odd methods",
        "security/test_routes.py",
        "test_a_method_that_is_not_listed_is_405_with_every_key",
    ),
    Shown(
        "CVE-2023-6021: an id that is a path",
        "security/test_paths.py",
        "test_an_id_is_looked_up_and_never_a_path",
    ),
    Shown(
        "CVE-2026-47155: an index that names files elsewhere",
        "engine/model/test_loader.py",
        "test_an_index_reaches_no_other_folder",
    ),
    Shown(
        "CVE-2024-12886: a registry that sends a bomb",
        "gatewayd/hub/test_pull_faults.py",
        "test_a_file_without_an_end_is_cut_at_its_listed_size",
    ),
    Shown(
        "CVE-2024-37032: a registry that names files elsewhere",
        "gatewayd/hub/test_pull_faults.py",
        "test_a_listing_with_hostile_names_is_refused",
    ),
    Shown(
        "CVE-2024-37032: a registry whose digests name files elsewhere",
        "gatewayd/hub/test_hostile_hub.py",
        "test_headers_of_an_answer_name_no_path",
    ),
    Shown(
        "models of a hub that bring code or pickles",
        "gatewayd/hub/test_pull.py",
        "test_code_and_pickles_are_never_fetched",
    ),
    Shown(
        "CVE-2026-22778: an error that tells an address",
        "security/test_paths.py",
        "test_no_error_tells_an_address_or_a_path",
    ),
    Shown(
        "CVE-2020-7694: a word that makes a line of the log",
        "gatewayd/tracing/test_logs.py",
        "test_no_words_make_a_line_of_their_own_or_drive_a_terminal",
    ),
    Shown(
        "CVE-2020-7694: the same in an engine's",
        "engine/process/test_logs.py",
        "test_no_words_make_a_line_of_their_own_or_drive_a_terminal",
    ),
    Shown(
        "CVE-2020-7694: a word that drives the console's terminal",
        "tui/test_terminal_escapes.py",
        "test_no_screen_writes_what_a_terminal_obeys",
    ),
    Shown(
        "CVE-2026-47102: a change by whoever has no right to it",
        "gatewayd/admin/test_peer.py",
        "test_strangers_and_those_whom_nobody_knows_are_cut_off",
    ),
    Shown(
        "CVE-2026-44556: a route that forgot which models a key may use",
        "gatewayd/tenants/test_keys.py",
        "test_a_key_for_one_model_is_for_no_other",
    ),
    Shown(
        "CVE-2026-35030: keys that begin alike",
        "gatewayd/tenants/test_keys.py",
        "test_keys_that_begin_alike_are_different_keys",
    ),
    Shown(
        "CVE-2025-29770: grammars that are kept without an end",
        "plugins/guides/test_guide_memory.py",
        "test_an_engine_lets_go_those_that_were_asked_for_longest_ago",
    ),
    Shown(
        "CVE-2025-57809: a grammar that ends its compiler",
        "gatewayd/engines/grammar_checks/test_checks.py",
        "test_one_that_takes_too_much_memory_too",
    ),
    Shown(
        "vLLM 18826: a queue without an end",
        "gatewayd/engines/test_fleet.py",
        "test_the_cap_on_requests_refuses_with_a_hint",
    ),
    Shown(
        "vLLM 48853: a prompt that ends in half a character",
        "security/test_outputs.py",
        "test_half_a_character_at_a_prompts_end_tells_nothing_of_the_prompt",
    ),
    Shown(
        "CVE-2026-105756: a salt that is none",
        "gatewayd/http/openai/test_cache_fields.py",
        "test_a_salt_that_none_may_be_is_refused",
    ),
    Shown(
        "CVE-2024-53981: forms without limits",
        "gatewayd/resources/files/test_files.py",
        "test_a_wrong_form_is_one_clear_error_and_leaves_nothing",
    ),
    Shown(
        "CVE-2025-25183: hashes of prefixes that can be guessed",
        "plugins/caching/test_prefix_hash.py",
        "test_digests_differ_between_processes_and_have_sixteen_bytes",
    ),
]
NOT_HERE = {
    "CVE-2026-3989: a dump of a crash that is loaded": Absent(
        "nothing is dumped, nor loaded again", "load_dump|coredump"
    ),
    "CVE-2026-45675: who comes first is the operator": Absent(
        "the socket's owner is: the kernel says", "claim_admin|first_user"
    ),
    "CVE-2025-62727: ranges of files": Absent(
        "files are sent whole, by no library's response", "FileResponse|StaticFiles|content-range"
    ),
    "CVE-2026-34755: images, sound and films": Absent(
        "nothing but text is taken; they are refused", "import (PIL|torchvision|soundfile|cv2|av)$"
    ),
    "CVE-2026-34159: an engine that computes for the network": Absent(
        "engines have no address", r"\.bind\(|\.listen\(|create_server", ("engine", "plugins")
    ),
    "vLLM's adapters that a request loads": Absent(
        "there are no adapters", r"adapter_config|lora_[ab]\b|\bpeft\b"
    ),
    "CVE-2025-46722: a cache key that leaves something out": Absent(
        "of images only; there are none", "pixel_values|image_hash"
    ),
    "CVE-2026-12491: a guard that sees something else": Absent(
        "no plugin judges what is said", "guardrail|GuardStrategy"
    ),
    "HTML of a model in a browser": Absent(
        "the console in a browser is a terminal's picture", "HTMLResponse|text/html|innerHTML"
    ),
    "CVE-2026-44346: a line of a generated file": Absent(
        "units are copied, and name no word of a client", "unit_files", ("gatewayd/http",)
    ),
}
"""Classes that have nothing here that they could be of."""


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


@pytest.mark.parametrize("absent", NOT_HERE.values(), ids=lambda absent: absent.why)
def test_what_is_not_here_has_not_come_since(absent: Absent) -> None:
    """Readers of GGUF had come, and the list still said that it is not read."""
    sign = re.compile(absent.sign, re.IGNORECASE | re.MULTILINE)
    found = {path for path, text in sources().items() if sign.search(text)}
    assert {path for path in found if path.startswith(absent.where)} == set()


@functools.cache
def sources() -> dict[str, str]:
    """All that is shipped, by path."""
    files = [file for root in ROOTS for file in (ROOT / root).rglob("*.py")]
    assert len(files) > 400
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def test_a_class_is_shown_or_not_here() -> None:
    names = [shown.what for shown in SHOWN]
    assert len(set(names)) == len(names)
    assert not NOT_HERE.keys() & set(names)
