# SPDX-License-Identifier: Apache-2.0
"""Rehearse a SageMaker job on this machine: N hosts with the files, variables and launcher of the real containers.

Examples::

    lightning-sagemaker local --hosts 2 --distribution smddp -- python train.py --epochs 1
    lightning-sagemaker local --hosts 2:4 --schedule 10:+1,30:-1 -- python train.py

"""

from __future__ import annotations

import argparse
import json

from lightning_sagemaker.errors import LaunchError, pairs

HELP = "run a command as a SageMaker job of several hosts, simulated on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker local``."""
    from lightning_sagemaker.simulator.containers import CONTRACTS
    from lightning_sagemaker.simulator.contract import DISTRIBUTIONS

    parser.add_argument(
        "--hosts",
        default="2",
        metavar="N|MIN:MAX",
        help="number of hosts (default: 2); MIN:MAX: start with MIN, others join and leave, up to MAX",
    )
    parser.add_argument(
        "--schedule", metavar="S:+N,S:-N", help="when hosts join and leave, in seconds, with --hosts MIN:MAX"
    )
    parser.add_argument(
        "--processes-per-host", type=int, default=1, metavar="M", help="ranks on each host (default: 1)"
    )
    parser.add_argument("--distribution", default="smddp", metavar="|".join(DISTRIBUTIONS), help="default: smddp")
    parser.add_argument(
        "--contract",
        default="toolkit",
        metavar="|".join(CONTRACTS),
        help="container type: that of the SDK 2 estimators, or of SDK 3's ModelTrainer (default: toolkit)",
    )
    parser.add_argument("--root", metavar="DIR", help="root folder of the hosts (default: runs/JOB-NAME)")
    parser.add_argument(
        "--source-dir", metavar="DIR", help="folder to copy to each host and run in (default: run here)"
    )
    parser.add_argument(
        "--channel", action="append", default=[], metavar="NAME=DIR", help="an input channel; repeatable"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="environment variable; repeatable"
    )
    parser.add_argument(
        "--mp-parameters",
        metavar="JSON",
        help='parameters of --distribution smp, such as \'{"partitions": 2, "microbatches": 4}\'',
    )
    parser.add_argument("--instance-type", default="ml.p4d.24xlarge", metavar="TYPE", help="default: ml.p4d.24xlarge")
    parser.add_argument(
        "--network",
        metavar="netns[:RATE]",
        help="one network namespace per host, its link limited to RATE (1gbit); needs root",
    )
    parser.add_argument(
        "--preload",
        action=argparse.BooleanOptionalAction,
        help="import torch and Lightning once and fork each process from there (default: if processes exceed cores)",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="stop everything after this long")
    parser.add_argument(
        "--debug", action="store_true", help="show every line of every rank, and errors with tracebacks"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="python train.py --epochs 1")


def main(arguments: argparse.Namespace) -> int:
    """Run the job; the exit code is that of the first rank that failed."""
    from lightning_sagemaker.launch import run_local_cluster

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    result = run_local_cluster(
        command,
        hosts=arguments.hosts,
        schedule=arguments.schedule,
        processes_per_host=arguments.processes_per_host,
        distribution=arguments.distribution,
        contract=arguments.contract,
        root=arguments.root,
        hyperparameters=_model_parallel(arguments.mp_parameters),
        environment=pairs("--env", arguments.env),
        channels=pairs("--channel", arguments.channel),
        source_dir=arguments.source_dir,
        instance_type=arguments.instance_type,
        network=arguments.network,
        preload=arguments.preload,
        timeout=arguments.timeout,
        debug=arguments.debug,
    )
    return result.returncode


def _model_parallel(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        return {"mp_parameters": json.loads(text)}
    except ValueError as error:
        raise LaunchError(
            f'--mp-parameters {text!r} is not JSON ({error}). HINT: write \'{{"partitions": 2, "ddp": true}}\'.'
        ) from None
