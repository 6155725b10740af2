"""Which test covers which row of the table of faults: `python -m tests.tidy.faults` writes the page in docs/.

Tests say it themselves, with `pytest.mark.fault(rows)`; those whose module is about something else are listed here.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.command_line import Command

from .tree import ROOT, AnyFunction, Module, modules

PAGE = Path("docs/faults-store.md")
MARK = "pytest.mark.fault"

LAST = 66
ROWS = {
    1: "a manifest cut at any byte",
    2: "a manifest of zeros, or empty",
    3: "one bit flipped in a manifest",
    4: "one bit flipped in a record",
    5: "a record missing",
    6: "an unknown file in the folder",
    7: "a record longer or shorter than said",
    8: "two records of one rollout",
    9: "one rollout under two attempts",
    10: "no space while records are written",
    11: "no space for a manifest or its rename",
    12: "an I/O error while writing",
    13: "an I/O error from fsync",
    14: "a crash between rename and folder sync",
    15: "a name on disk before its data",
    16: "a folder that may not be written",
    17: "a file system that cannot keep the promises",
    18: "the folder deleted in the middle of a commit",
    19: "leftovers of an earlier try of the same id",
    20: "names too long, odd, or different in case alone",
    21: "quota or inodes used up",
    22: "a file system's clock in the future",
    23: "bursts of 503 and 500",
    24: "a reply lost after the entry was written",
    25: "412 on the entry",
    26: "409 on a conditional create",
    27: "an upload in parts that is never completed",
    28: "a stale or partial listing",
    29: "an object shorter than announced",
    30: "credentials that expire before the manifest",
    31: "permission to write and not to list or delete",
    32: "a store that ignores conditional create",
    33: "an object deleted by another tool",
    34: "a copy between kinds of stores",
    35: "an ETag that is no digest",
    36: "a participant that is not parked at the deadline",
    37: "a participant that dies before it is prepared",
    38: "a participant that dies between prepare and commit",
    39: "a participant that dies before the publication",
    40: "a coordinator that dies after prepare",
    41: "a coordinator that dies before resume",
    42: "a coordinator that dies in a restore",
    43: "two coordinators at once",
    44: "a prepare that comes again",
    45: "a call in a phase or round that it does not fit",
    46: "a worker restarted while paused",
    47: "a restore that comes twice",
    48: "a checkpoint restored after its replacement ran",
    49: "a stale life that writes or finishes late",
    50: "a lease that runs out in a long commit",
    51: "clocks that differ or jump",
    52: "an episode that finishes during prepare",
    53: "a retire while a checkpoint is open",
    54: "a retire that comes twice or of nobody",
    55: "a verifier in flight",
    56: "a partition that heals",
    57: "64,000 rollouts in flight",
    58: "names that would be paths",
    59: "links and devices inside a checkpoint",
    60: "decompression bombs",
    61: "JSON that cannot be kept exactly",
    62: "a newer major version or an unknown feature",
    63: "a manifest of another run",
    64: "a manifest that names something outside its prefix",
    65: "a control call with a wrong token, or an old one again",
    66: "a payload that is a pickle, or holds a credential",
}

ELSEWHERE = {
    1: ["store/test_chain_damage.py::test_an_entry_cut_at_any_byte_is_named"],
    3: ["store/test_chain_damage.py::test_a_flipped_bit_anywhere_is_named"],
    4: ["store/test_verify.py::test_damage_in_a_part_names_participant_part_and_records"],
    5: [
        "store/test_verify.py::test_every_missing_object_is_found_and_named",
        "orchestrator/cli/test_process.py::test_each_kind_of_ending_has_its_exit_code",
    ],
    6: [
        "store/test_limits.py::test_objects_that_nobody_named_are_passed_over",
        "store/test_verify.py::test_leftovers_are_told_and_never_touched",
        "store/test_prune.py::test_leftovers_of_dead_ids_are_swept_when_old_by_the_stores_clock",
        "store/test_prune.py::test_what_is_not_of_our_making_is_never_deleted",
    ],
    8: ["store/test_publish.py::test_one_rollout_in_two_processes_of_a_participant_is_refused"],
    9: ["store/test_publish.py::test_two_participants_with_different_lives_of_a_rollout_are_refused"],
    10: ["crash/test_local_faults.py::test_every_system_call_that_fails_loses_nothing"],
    11: ["crash/test_local_faults.py::test_every_system_call_that_fails_loses_nothing"],
    12: ["store/backends/test_local_faults.py::test_a_write_that_fails_at_its_nth_call_leaves_old_or_new"],
    13: [
        "store/backends/test_local_faults.py::test_a_failed_fsync_is_not_repeated",
        "crash/test_page_cache.py::test_a_publication_that_was_repeated_after_a_failed_sync_is_durable",
    ],
    14: [
        "crash/test_crash_states.py::test_every_crash_state_is_the_one_before_or_the_one_after",
        "store/backends/test_local_faults.py::test_a_power_loss_at_any_moment_leaves_old_or_new",
    ],
    15: ["crash/test_crash_states.py::test_every_crash_state_is_the_one_before_or_the_one_after"],
    16: [
        "store/backends/test_opening.py::test_a_folder_that_cannot_be_written_fails_at_opening",
        "store/backends/test_opening.py::test_denied_reading_or_writing_fails_at_opening",
    ],
    17: [
        "store/backends/test_opening.py::test_a_network_file_system_is_refused_by_name",
        "store/backends/test_local_faults.py::test_a_file_system_without_links_is_named_as_such",
    ],
    18: [
        "store/backends/test_local_faults.py::test_a_folder_deleted_in_mid_write_fails_the_write",
        "store/backends/test_local_faults.py::test_a_vanished_root_is_not_made_again",
    ],
    19: ["store/backends/test_local_faults.py::test_a_leftover_is_hidden_listed_apart_and_never_merged"],
    20: [
        "store/test_layout.py::test_names_that_differ_in_case_alone_cannot_both_exist",
        "store/test_layout.py::test_a_name_that_could_collide_or_be_taken_for_a_file_is_refused",
        "store/backends/test_local_faults.py::test_the_longest_name_can_be_written",
        "store/backends/test_local_faults.py::test_names_that_are_no_keys_hide_no_object",
    ],
    21: ["store/backends/test_local_faults.py::test_a_write_that_fails_at_its_nth_call_leaves_old_or_new"],
    22: [
        "store/backends/test_local_faults.py::test_a_time_in_the_future_is_told_as_it_is",
        "store/test_prune.py::test_leftovers_of_dead_ids_are_swept_when_old_by_the_stores_clock",
    ],
    23: ["store/backends/test_s3_faults.py::test_a_burst_of_refusals_is_waited_out"],
    24: [
        "store/backends/test_s3_faults.py::test_a_lost_reply_is_settled_by_reading_the_slot",
        "store/test_chain.py::test_a_lost_reply_is_success_once",
    ],
    25: [
        "store/backends/test_s3_faults.py::test_an_entry_of_another_writer_is_handed_over",
        "store/test_chain.py::test_a_writer_that_loses_its_slot_to_a_higher_claim_is_fenced",
    ],
    26: ["store/backends/test_s3_faults.py::test_a_conflict_of_creates_is_retried"],
    27: ["store/backends/test_s3_faults.py::test_a_large_object_is_one_put"],
    28: ["store/test_chain.py::test_a_stale_listing_never_hides_an_entry"],
    29: ["store/backends/test_s3_faults.py::test_a_body_that_breaks_off_is_read_again"],
    30: ["store/backends/test_s3_faults.py::test_expired_credentials_are_read_again"],
    31: [
        "store/backends/test_s3_faults.py::test_permission_to_write_alone_works_with_warnings",
        "store/test_prune.py::test_a_failure_to_delete_is_reported_and_tried_again_by_the_next",
    ],
    32: [
        "store/backends/test_s3_faults.py::test_a_store_that_ignores_conditions_is_refused",
        "store/backends/test_opening.py::test_a_store_that_breaks_a_promise_is_refused",
    ],
    33: ["store/test_verify.py::test_every_missing_object_is_found_and_named"],
    34: [
        "store/test_copy.py::test_from_local_disk_to_s3_and_back_everything_is_valid_and_kept",
        "store/test_copy.py::test_pruning_keeps_what_was_copied_in",
    ],
    35: ["store/backends/test_s3_faults.py::test_an_etag_that_is_no_digest_is_of_no_interest"],
    43: [
        "orchestrator/collect/test_sameness.py::test_a_second_collector_beside_a_live_one_is_refused",
        "orchestrator/collect/test_sameness.py::test_take_over_fences_the_first_and_its_later_rows_do_not_count",
    ],
    48: ["participants/test_continuation.py::test_a_checkpoint_restores_again_after_its_replacement_died"],
    52: [
        "participants/test_continuation.py::test_an_episode_that_finishes_during_prepare_is_delivered_once",
        "participants/test_environment.py::test_no_result_of_a_run_leaves_while_prepared",
    ],
    55: [
        "participants/test_continuation.py::test_a_verify_in_flight_that_ends_without_a_crash_is_used_and_not_run_again",
        "participants/test_environment.py::test_a_checkpoint_waits_for_a_verify_only_where_it_is_declared",
    ],
    58: [
        "store/test_layout.py::test_a_hostile_name_is_refused_whatever_it_should_name",
        "store/test_layout.py::test_a_life_cannot_even_be_made_of_a_hostile_rollout_id",
    ],
    59: [
        "store/backends/test_local_links.py::test_a_linked_object_is_refused",
        "store/backends/test_local_links.py::test_a_special_file_is_refused_and_does_not_hang",
        "store/backends/test_local_links.py::test_a_put_leaves_other_names_of_a_file_alone",
    ],
    62: ["store/test_chain_damage.py::test_an_entry_of_a_newer_format_is_refused_by_name"],
    63: ["store/test_reader.py::test_the_fingerprint_of_another_run_names_each_field_that_differs"],
    66: [
        "store/test_verify.py::test_secrets_are_found_in_state_records_and_payloads_and_not_shown",
        "tidy/test_words.py::test_nothing_forbidden_is_said_or_called",
    ],
}
"""Below tests/, as `path::function`."""


def rows_of(marks: Iterable[ast.expr]) -> Iterator[int]:
    """The rows that marks name."""
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
            yield from (int(ast.unparse(row)) for row in mark.args)


def rows_of_all(module: Module) -> list[int]:
    """The rows that a module's `pytestmark` names, for each test in it."""
    values = [node.value for node in module.tree.body if isinstance(node, ast.Assign) and _names(node) == "pytestmark"]
    return [row for value in values for row in rows_of(value.elts if isinstance(value, ast.List) else [value])]


def _names(node: ast.Assign) -> str:
    return ast.unparse(node.targets[0])


def marked(root: Path) -> Iterator[tuple[str, int]]:
    """Each test with each row that a mark of its own or of its module names."""
    for module in modules(root, "tests"):
        shared = rows_of_all(module)
        for name, function in names_in(module):
            yield from ((name, row) for row in (*shared, *rows_of(function.decorator_list)))


def names_in(module: Module) -> Iterator[tuple[str, AnyFunction]]:
    """The tests of a module, each by `path::function` below tests/."""
    for function in module.functions():
        if function.name.startswith("test_"):
            yield f"{module.path.relative_to('tests')}::{function.name}", function


def covered(root: Path) -> dict[int, list[str]]:
    """Row to tests, those that are marked and those listed here; every name is one that exists."""
    tests = {name for module in modules(root, "tests") for name, _ in names_in(module)}
    found = {row: [name for name in ELSEWHERE.get(row, ()) if name in tests] for row in ROWS}
    for name, row in marked(root):
        found.get(row, []).append(name)
    return {row: sorted(set(names)) for row, names in found.items()}


def invented(root: Path) -> list[str]:
    """Tests that are marked with a row past the end of the table."""
    return [f"{name}: there is no row {row}" for name, row in marked(root) if not 1 <= row <= LAST]


def gone(root: Path) -> list[str]:
    """Names in the list above that no test has any more."""
    tests = {name for module in modules(root, "tests") for name, _ in names_in(module)}
    return sorted({name for names in ELSEWHERE.values() for name in names if name not in tests})


def page(root: Path) -> str:
    """The page, whole."""
    found = covered(root)
    lines = [
        "# What can go wrong, and the tests of it",
        "",
        "Written by `python -m tests.tidy.faults` from the tests themselves; names are below `tests/`.",
        "",
        "| # | fault | tests |",
        "|---|---|---|",
    ]
    for row, title in ROWS.items():
        tests = "<br>".join(f"`{name}`" for name in found[row])
        lines.append(f"| {row} | {title} | {tests} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. It has no options, and `--help` writes nothing."""
    Command("tests.tidy.faults", __doc__).parse_args(arguments)
    (ROOT / PAGE).write_text(page(ROOT), encoding="utf-8")


if __name__ == "__main__":
    main()
