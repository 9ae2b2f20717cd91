# SPDX-License-Identifier: Apache-2.0
"""A job as a manifest for HyperPod's training operator (kind ``HyperPodPyTorchJob``), for ``kubectl apply``.

Each container runs ``hyperpodrun`` of the package ``hyperpod-elastic-agent``: torchrun's elastic agent with the
operator's rendezvous. The operator restarts processes and replaces nodes; ``AutoResume`` resumes training from the last
checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.distribution import parse_distribution
from lightning_sagemaker.simulator.containers.toolkit import to_arguments

API_VERSION, KIND = "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob"

_CARRIED = (
    "recipe", "entry_point", "instance_type", "instance_count", "image_uri", "hyperparameters", "environment",
    "distribution", "max_run", "max_retry_attempts", "base_job_name", "region",
)  # fmt: skip
"""Keys of a job that a manifest can express; any other must have its default."""
_STARTED = ("none", "ddp", "torch_distributed")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_AGENT_PORT = 8080
"""Port of ``hyperpodrun`` for requests of the operator."""


def manifest(config: JobConfig) -> dict[str, object]:
    """The manifest of a job.

    Args:
        config: The job. Its image must have the program, this package and ``hyperpod-elastic-agent``; no source is sent.

    Raises:
        LaunchError: If the job sets a key that a manifest cannot express, or lacks one that it needs.

    """
    _check(config)
    instance = find_instance(config.instance_type)
    request = parse_distribution(config.distribution)
    processes = request.processes_per_host or instance.gpus or 1
    name = _name(config)
    resources: dict[str, object] = {"nvidia.com/gpu": instance.gpus} if instance.gpus else {}
    container: dict[str, object] = {
        "name": "training",
        "image": config.image_uri,
        "imagePullPolicy": "Always",
        "command": ["hyperpodrun"],
        "args": [
            f"--nnodes={config.instance_count}",
            f"--nproc-per-node={processes}",
            "--rdzv-backend=hyperpod",
            # SIGTERM some time before SIGKILL: SpotInterruption saves a checkpoint in between.
            "--shutdown-signal=SIGTERM",
            "--shutdown-timeout=110",
            *_program(config),
        ],
        "ports": [{"containerPort": _AGENT_PORT}],
    }
    if config.environment:
        container["env"] = [{"name": key, "value": value} for key, value in config.environment.items()]
    if resources:
        container["resources"] = {"requests": resources, "limits": dict(resources)}
    spec = {
        "nodeSelector": {"node.kubernetes.io/instance-type": config.instance_type},
        "terminationGracePeriodSeconds": 120,
        "containers": [container],
    }
    policy: dict[str, object] = {"cleanPodPolicy": "None", "activeDeadlineSeconds": config.max_run}
    if config.max_retry_attempts is not None:
        policy["jobMaxRetryCount"] = config.max_retry_attempts
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "nprocPerNode": str(processes),
            "replicaSpecs": [{"name": "pod", "replicas": config.instance_count, "template": {"spec": spec}}],
            "runPolicy": policy,
        },
    }


def to_yaml(found: Mapping[str, object]) -> str:
    """The manifest as YAML text."""
    import yaml

    return str(yaml.safe_dump(dict(found), sort_keys=False, allow_unicode=True, width=10_000))


def _check(config: JobConfig) -> None:
    default = JobConfig()
    for one in fields(config):
        if one.name not in _CARRIED and getattr(config, one.name) != getattr(default, one.name):
            raise LaunchError(
                f"{one.name} was set, which a HyperPodPyTorchJob has no field for. HINT: leave it out with --target"
                " hyperpod; the image contains the program, and volumes and the service account are added to the manifest."
            )
    if config.image_uri is None:
        raise LaunchError(
            "--target hyperpod was set without image_uri. HINT: set it to an image that contains the program,"
            " lightning-sagemaker and hyperpod-elastic-agent: --set image_uri=ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG."
        )
    if config.recipe is None and config.entry_point is None:
        raise LaunchError("The job has no program. HINT: give a recipe, or the path of a script in the image.")
    if config.entry_point is not None and not config.entry_point.endswith(".py"):
        raise LaunchError(
            f"{config.entry_point} was given with --target hyperpod, and hyperpodrun only starts Python. HINT: use a "
            ".py script."
        )
    kind = parse_distribution(config.distribution).kind
    if kind not in _STARTED:
        raise LaunchError(
            f"distribution={kind!r} was set with --target hyperpod, where hyperpodrun starts the ranks. HINT: choose"
            f" {', '.join(_STARTED[1:])}, or leave it out."
        )


def _name(config: JobConfig) -> str:
    """The job's name, which Kubernetes restricts to 63 lowercase letters, digits and dashes."""
    given = config.base_job_name
    if given is None:
        program = config.recipe or (config.entry_point or "").rpartition("/")[2].removesuffix(".py")
        given = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")[:63].strip("-") or "training"
    if not _NAME.fullmatch(given):
        raise LaunchError(
            f"base_job_name={given!r} was set. HINT: Kubernetes accepts up to 63 lowercase letters, digits and dashes,"
            " starting and ending with a letter or digit."
        )
    return given


def _program(config: JobConfig) -> list[str]:
    words = to_arguments(dict(config.hyperparameters))  # as in a training job
    if config.recipe is not None:
        return ["-m", "lightning_sagemaker.cli", "run", config.recipe, *words]
    return [str(config.entry_point), *words]
