# SPDX-License-Identifier: Apache-2.0
"""Run a recipe or a script as a SageMaker training job: a plan with its price first, then the job and its log.

``--dry-run`` prints the complete CreateTrainingJob request and needs neither credentials nor network; ``--rehearse``
runs the identical job on this machine first, and starts it on SageMaker only with ``--yes``.

Example:
    ``lightning-sagemaker launch albert-mlm --instance-type ml.p4d.24xlarge --instance-count 2 --distribution smddp``.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, TextIO

from lightning_sagemaker.commands.register import register_command, register_model, with_registration
from lightning_sagemaker.errors import LaunchError, pairs
from lightning_sagemaker.option_types import seconds

if TYPE_CHECKING:
    from lightning_sagemaker.launch.planning.job_plan import JobPlan
    from lightning_sagemaker.launch.spec.config import JobConfig
    from lightning_sagemaker.launch.tracking.jobs import JobStatus

HELP = "run a recipe or a script as a SageMaker training job"

_NEEDS = dict.fromkeys(("rehearse_set", "rehearse_channel", "rehearse_hosts"), "rehearse") | {
    "inference_image": "register"
}
"""Options without effect unless another is set: without it a job would start that was to be rehearsed."""

_NO_ROLE = "MISSING: the job's execution role; set --role ARN, or role: in the job's file"
"""Placeholder for ``RoleArn`` in a dry run's request."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker launch``."""
    add = parser.add_argument
    add("program", nargs="?", metavar="RECIPE|SCRIPT", help="a recipe's name, or train.py")
    job = parser.add_argument_group("the job (each option can also be set in --config)")
    job.add_argument("--config", metavar="job.yaml", help="a job file; the options below override it")
    several = "such as ml.p4d.24xlarge; or several, with commas: see --max-cost"
    job.add_argument("--instance-type", metavar="TYPE", help=several)
    job.add_argument("--instance-count", type=int, metavar="N", help="number of hosts")
    job.add_argument("--distribution", metavar="KIND", help="smddp, ddp, torch_distributed, mpi, smp or none")
    job.add_argument("--role", metavar="ARN", help="execution role")
    job.add_argument("--region", help="one, or several with commas; default: the one that AWS is configured with")
    job.add_argument(
        "--max-cost",
        type=float,
        metavar="USD",
        help="do not start anything that may cost more; without capacity, further types and then regions are tried",
    )
    job.add_argument("--source-dir", metavar="DIR", help="source folder to send (default: the script alone)")
    job.add_argument("--channel", action="append", default=[], metavar="NAME=PLACE", help="input data; repeatable")
    job.add_argument("--spot", action="store_true", help="managed spot training")
    job.add_argument("--output-path", metavar="s3://...", help="S3 prefix for the artifacts")
    job.add_argument("--max-run", type=int, metavar="SECONDS", help="stop the job after this long")
    job.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any other key of a job: max_wait=90000, hyperparameters.max_steps=100, environment.NAME=x; repeatable",
    )
    job.add_argument("--save", metavar="job.yaml", help="write the job to a file, and exit")
    run = parser.add_argument_group("actions")
    run.add_argument(
        "--target",
        choices=("sagemaker", "hyperpod"),
        default="sagemaker",
        help="hyperpod: print a manifest for HyperPod's training operator, for kubectl, and exit (default: sagemaker)",
    )
    run.add_argument("--dry-run", action="store_true", help="print the request as JSON, and exit")
    run.add_argument(
        "--rehearse", action="store_true", help="run it on this machine, and exit; with --yes, start it if that passes"
    )
    run.add_argument(
        "--rehearse-set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter of the rehearsal"
    )
    run.add_argument(
        "--rehearse-channel",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a local folder instead of a channel's data",
    )
    run.add_argument("--rehearse-hosts", type=int, metavar="N", help="fewer hosts than the job's")
    run.add_argument("--rehearse-root", metavar="DIR", default="runs/rehearsal", help="default: %(default)s")
    run.add_argument("--yes", action="store_true", help="start without asking")
    run.add_argument("--no-wait", action="store_true", help="return once the job is started")
    run.add_argument(
        "--register", metavar="GROUP", help="register the model in SageMaker's registry when the job has succeeded"
    )
    run.add_argument("--inference-image", metavar="URI", help="image to serve the registered model with")
    run.add_argument("--poll", type=seconds, default=10.0, metavar="SECONDS", help="polling interval (default: 10)")
    run.add_argument("--refresh-prices", action="store_true", help="first refresh the regions' prices from AWS")
    run.add_argument("--refresh-instances", action="store_true", help="first refresh the instance types from AWS")
    parser.epilog = (
        "Options after the script that are not listed here become hyperparameters: launch train.py --epochs 3."
    )
    parser.allow_abbrev = False  # an abbreviated option may be one of the script's
    parser.set_defaults(script_arguments=[])


def main(arguments: argparse.Namespace) -> int:
    """Plan, rehearse or start a job; the exit code is 1 for a failed job, or that of a failed rehearsal."""
    from lightning_sagemaker.launch.spec.command_line import read_config

    _check_together(arguments)
    if arguments.refresh_instances:
        _refresh_instances(arguments.region)
    config = read_config(arguments)
    if arguments.save:
        return _save(config, arguments.save)
    if arguments.target == "hyperpod":
        return _print_manifest(config)
    if arguments.refresh_prices:
        _refresh_prices(config)
    if arguments.register:
        from lightning_sagemaker.launch.tracking.registry import check_group

        check_group(arguments.register)
    return _run(arguments, config)


def _check_together(arguments: argparse.Namespace) -> None:
    for option, needed in _NEEDS.items():
        if getattr(arguments, option) not in (None, [], "") and not getattr(arguments, needed):
            words = f"--{option.replace('_', '-')} was set without --{needed}"
            raise LaunchError(f"{words}. HINT: add --{needed}, or leave it out.")


def _refresh_instances(regions: str | None) -> None:
    from lightning_sagemaker.launch.aws import translate_aws_errors
    from lightning_sagemaker.launch.planning.instances import refresh_instances
    from lightning_sagemaker.launch.planning.plan import own_region

    region = (regions or own_region()).partition(",")[0]
    with translate_aws_errors("Reading the instance types"):
        print(f"instances: {refresh_instances(region)}", file=sys.stderr)


def _refresh_prices(config: JobConfig) -> None:
    from lightning_sagemaker.launch.aws import translate_aws_errors
    from lightning_sagemaker.launch.planning.plan import own_region
    from lightning_sagemaker.launch.planning.pricing import refresh_prices

    for region in (config.region or own_region(), *config.other_regions):
        with translate_aws_errors("Reading the prices"):
            print(f"prices: {refresh_prices(region)}", file=sys.stderr)


def _save(config: JobConfig, place: str) -> int:
    """Write the job to a file; return the exit code."""
    from pathlib import Path

    from lightning_sagemaker.text_files import write_text

    text, path = config.to_yaml(), Path(place)
    try:
        path.parent.stat()  # a folder that is not there is more likely misspelled than wanted
        write_text(path, text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise LaunchError(
            f"--save {place!r} cannot be written: {why}. HINT: use a file in an existing folder."
        ) from error
    print(f"{place}: start it with `lightning-sagemaker launch --config {place}`")
    return 0


def _print_manifest(config: JobConfig) -> int:
    """Print the job as a manifest for HyperPod; return the exit code."""
    from lightning_sagemaker.launch.hyperpod import manifest, to_yaml
    from lightning_sagemaker.launch.planning.report import exposed

    print(to_yaml(manifest(config)), end="")
    for line in exposed(config):
        print(f"warning: {line}", file=sys.stderr)
    return 0


def _run(arguments: argparse.Namespace, config: JobConfig) -> int:
    """Show the plan, then its request, rehearse it or start it; return the exit code."""
    from lightning_sagemaker.launch.planning.plan import make_plan
    from lightning_sagemaker.launch.planning.report import describe
    from lightning_sagemaker.launch.planning.streaming import describe_streaming

    plan, output = make_plan(config), sys.stderr if arguments.dry_run else sys.stdout
    _print_rows([*describe(plan), *describe_streaming(plan, asks_s3=not arguments.dry_run)], output)
    if arguments.dry_run:
        _print_request(arguments, plan)
    if arguments.rehearse and (code := _rehearse(arguments, plan, output)):
        return code
    if arguments.dry_run or (arguments.rehearse and not arguments.yes):
        return 0
    return _start(arguments, plan)


def _print_request(arguments: argparse.Namespace, plan: JobPlan) -> None:
    import json

    from lightning_sagemaker.launch.estimator import Estimator

    request = {"RoleArn": _NO_ROLE, **Estimator.from_config(plan.config).request(plan=plan)}
    shown = request if arguments.register is None else with_registration(request, arguments, plan.config)
    print(json.dumps(shown, indent=2))


def _rehearse(arguments: argparse.Namespace, plan: JobPlan, output: TextIO) -> int:
    from pathlib import Path

    from lightning_sagemaker.launch.rehearsal import rehearse
    from lightning_sagemaker.launch.spec.command_line import yaml_value

    done = rehearse(
        plan,
        Path(arguments.rehearse_root),
        settings={name: yaml_value(text) for name, text in pairs("--rehearse-set", arguments.rehearse_set).items()},
        folders=pairs("--rehearse-channel", arguments.rehearse_channel),
        hosts=arguments.rehearse_hosts,
        output=output,
    )
    _print_rows(done.lines(), output)
    return done.result.returncode


def _start(arguments: argparse.Namespace, plan: JobPlan) -> int:
    from lightning_sagemaker.launch.estimator import Estimator
    from lightning_sagemaker.launch.planning import rules
    from lightning_sagemaker.launch.planning.plan import price

    rules.check_role(plan.config)
    if not arguments.yes and not _agreed():
        print("Nothing was started. HINT: --yes starts without asking.")
        return 1
    estimator = Estimator.from_config(plan.config)

    def follow(name: str, one: JobPlan) -> JobStatus | None:
        print(f"{'started' if one.config.job_queue is None else 'queued'}: {name}", flush=True)
        cost = price(one)
        per_hour = None if cost is None else cost.per_hour
        if arguments.no_wait:
            return None
        name = estimator.started_name(arguments.poll, say)
        return estimator.jobs.follow(name, poll=arguments.poll, per_hour=per_hour)

    def say(text: str) -> None:
        print(f"lightning-sagemaker: {text}", flush=True)

    try:
        status = estimator.start(plan, follow, say=say)
    except KeyboardInterrupt:
        print(f"\nThe job is still running. `lightning-sagemaker stop {estimator.job_name}` stops it.")
        return 130
    if status is None:
        if arguments.register:
            print(f"Once it has completed, `{register_command(arguments, estimator)}` registers its model.")
        return 0
    print(f"{status.name}: {status.status}{f': {status.reason}' if status.reason else ''}")
    print(f"artifact: {status.model_data}")
    if status.status != "Completed":
        return 1
    return register_model(arguments, estimator) if arguments.register else 0


def _agreed() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("Start the job? [y/N] ").strip().lower() in ("y", "yes")


def _print_rows(rows: list[tuple[str, str]], stream: TextIO) -> None:
    width = max(len(word) for word, _ in rows) + 2
    for word, text in rows:
        print(f"{word:<{width}}{text}", file=stream, flush=True)
