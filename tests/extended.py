# SPDX-License-Identifier: Apache-2.0
"""What CI leaves to `make test-extended`, so that it ends in less than 20 minutes on two cores.

Most have a shorter one like them that CI runs; the comment before each group says which, and what CI does not try at all.
A plugin of pytest: it marks them ``extended``. Tests that take minutes are marked ``slow`` where they stand.
"""

import re
from collections import defaultdict

import pytest

LEFT_OUT: dict[str, tuple[str, ...]] = {
    # Interruptions: CI stops and resumes runs of test_array, test_resumed, test_fabric and distributed/test_interrupted, and
    # kills a rank in recovery/test_in_job; test_together kills a host. It freezes no rank, and restarts no job by torchrun.
    "chaos/test_chaos": (".*",),
    "chaos/test_callbacks": (".*",),
    "chaos/test_data_faults": (r".*hangs\[(?!(missing|corrupt, skipped)\]).*",),
    "chaos/test_exact": (".*",),
    "chaos/test_frozen": (".*",),
    "chaos/test_recovery_hosts": (".*",),
    "chaos/test_array": (r".*left_alone\[[01245]\]",),
    "chaos/test_trials": (r".*\[(.*-)?batch size\]",),
    "chaos/test_fabric": (r".*alone\[(three ranks|a strategy of|in an .* same data|after an).*\]",),
    "distributed/test_restarts": (".*",),
    "recovery/test_own_state": (".*",),
    "recovery/test_several_fits": (".*",),
    "recovery/test_together": (
        "test_a_rank_(of_another_host|that_fails_again)_.*",
        r"test_others_continue_.*\[(stages-7|fabric-1)\]",
        "test_ranks_are_killed_.*",
    ),
    "distributed/test_memory": ("test_a_new_host_.*", "test_a_later_fit_.*", r".*\[one rank, then all\]"),
    "recovery/test_in_job": (
        "test_a_batch_that_kills_.*",
        "test_asked_to_stop_.*",
        r"test_ranks_of_a_script_that_cannot_.*\[schedule.*",
    ),
    "recovery/test_fabric_loop": (
        "test_what_dropout_draws_.*",
        "test_asked_to_stop_.*",
        "test_a_loop_without_ours_.*",
        "test_a_loop_that_cannot_recover_.*",
    ),
    "callbacks/test_interruption": (r".*_ends\[.*",),
    # Equality with one process: CI has "smddp" in test_lightning, stages in test_smp, sharding in test_fsdp, and tensor
    # parallelism in the shim of version 2 only (test_version2). It tries no delayed parameters on several processes, no
    # callbacks under "smp", no reduction of a pipeline's replicas during the backward passes, and interrupts no pipeline.
    "distributed/test_smp_features": (".*",),
    "distributed/test_smp_sharded": (".*",),
    "distributed/test_delayed": (".*",),
    "distributed/test_aws_recipe": (".*",),
    "distributed/test_aws_samples": (r".*\[torch_distributed-.*",),
    "distributed/test_pipeline": (".*",),
    "distributed/test_overlap": (".*",),
    "distributed/test_reduction": (r".*\[(3 hosts x 1|1 host x 2)\b.*",),
    "distributed/test_interrupted": (
        r"test_both_.*\[(?!(tensor, parts|beside, parts, s3)\]).*",
        r"test_a_part_.*\[.*-(stages|beside), parts\]",
    ),
    "distributed/test_smp_shim": (r".*\[(.*-)?digits\b.*", "test_matrices_.*"),
    "distributed/test_forks": ("test_a_strategy_guards_its_forks_once",),
    "data/test_handover": (r".*over\[spawn\]",),
    "data/test_position": ("test_a_watched_loader_gives_.*",),
    # Recipes: CI trains each on one process and on two; on two hosts one as it is launched (end_to_end/test_jobs_run).
    "recipes/test_processes": (r".*\[(.*-)?(4|smp|tensor)\]", "test_pipeline_stages_.*", "test_shared_matrices_.*"),
    "recipes/test_results": (
        "test_(classifier_knows|each_figure|probabilities|exported_classifier|bfloat16|a_copy_of_each|a_stopped_run)_.*",
    ),
    "recipes/test_albert_mlm": (
        "test_(a_copied_recipe|two_hosts_with_accumulation|one_line_for_each_step|metrics_and_configuration)_.*",
    ),
    "recipes/test_streamed_text": ("test_a_changed_upload_.*",),
    "recipes/test_worker_memory": (r".*-mapped\]",),
    "recipes/test_best": ("test_two_processes_of_which_.*",),
    "recipes/test_measured_workers": ("test_training_waits_no_longer",),
    "recipes/test_shards": ("test_older_shards_with_the_slow_.*",),
    "recipes/test_damaged_shards": ("test_(sequences_of_intact|what_a_loader|a_segments_file|without_any)_.*",),
    "recipes/test_lora": ("test_a_checkpoint_holds_.*",),
    "recipes/test_records": ("test_shards_of_records_.*",),
    "recipes/test_data": ("test_builtin_text_is_prose_.*",),
    # Jobs: CI holds them to recordings of AWS's programs, not to the programs, starts two hosts by one launcher, and runs a
    # recipe as it is launched.
    "end_to_end/test_truth": (".*",),
    "end_to_end/test_jobs_run": (
        "test_a_script_with_data_.*",
        "test_stopping_a_job_.*",
        "test_a_rehearsal_takes_a_part_.*",
    ),
    "end_to_end/test_two_hosts": (r".*\[(no-launcher|torchrun)\]", "test_two_hosts_with_networks_.*"),
    "end_to_end/test_recordings": (r".*\[v3td\]",),
    "launch/request/test_send": (
        r"test_the_sdk_sends_.*\[(albert-mlm (ddp|fsx|spot)|bert-qa (fsx|smddp|smp|spot)|.*-class.* (ddp|smddp|smp))\]",
    ),
    "launch/planning/test_alternatives": ("test_other_failures_.*", "test_a_new_instance_type_.*"),
    "launch/spec/test_groups": (r".*\[stand-in\]",),
    "simulator/test_preload": ("test_each_ranks_view", "test_imports_read_.*", "test_variables_that_are_set_before_.*"),
    "simulator/test_names": (
        r".*host\[(torch_distributed-True|smddp-False)\]",
        r".*mpi\[False\]",
        "test_lightnings_own_environment_.*",
    ),
    "data/test_grouped": (r"test_a_loader_goes_on_.*\[workers(1|3)-8\]",),
    "simulator/test_open_mpi": (r".*\[5-.*",),
    "simulator/test_cluster": (
        "test_a_folder_for_temporary_files_.*",
        r".*\[torch_distributed\]",
        "test_the_exit_code_is_.*",
        "test_torchrun_refuses_the_names_.*",
    ),
    "container/test_lightning_driver": (r".*on\[in_job\]",),
    "package/test_on_import": (
        r".*imports\[(?!import lightning\.pytorch;).*",
        r".*first\[(pytorch_)?lightning first\]",
    ),
    "package/test_main": ("test_explicit_arguments_win_.*", "test_defaults_come_from_.*"),
    "commands/test_launch_wrong_input": ("test_any_value_in_a_file_.*",),
    "docs/test_examples": ("test_the_trainer_loses_the_same_.*",),
    "bench/test_breakdown": ("test_each_sleep_.*",),
    "bench/test_guard": ("test_each_program_still_runs",),
}
"""File, without its ending -> patterns of whole names of its tests, with or without their parameters."""


def is_extended(node: str) -> bool:
    """Whether CI leaves out the test of this node id."""
    path, _, name = node.partition("::")
    patterns = LEFT_OUT.get(path.removeprefix("tests/").removesuffix(".py"), ())
    return any(_matches(pattern, name) for pattern in patterns)


def _matches(pattern: str, name: str) -> bool:
    return any(re.fullmatch(pattern, one, re.DOTALL) for one in (name, name.partition("[")[0]))


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_extended(item.nodeid):
        item.add_marker(pytest.mark.extended)


@pytest.hookimpl(tryfirst=True)  # before any is deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A pattern that matches no test of its file is an error: the test was renamed, and CI would run it again."""
    if any("::" in argument for argument in config.args):
        return
    found = defaultdict(list)
    for item in items:
        path, _, name = item.nodeid.partition("::")
        found[path.removeprefix("tests/").removesuffix(".py")].append(name)
    for path in found.keys() & LEFT_OUT.keys():
        for pattern in LEFT_OUT[path]:
            if not any(_matches(pattern, name) for name in found[path]):
                raise pytest.UsageError(
                    f"tests/extended.py lists {pattern!r} for tests/{path}.py, which has no such test"
                )
