# SPDX-License-Identifier: Apache-2.0
"""A manually started process, with an incomplete set of launcher variables.

Lightning's environments have a default for each missing one, and the Trainer's ``devices`` and ``num_nodes`` give the
world size. The same holds here; variables that are set must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightning_sagemaker.job.source import Source
from lightning_sagemaker.job.types import SageMakerJobError

_NAMES = {"LOCAL_RANK": 0, "RANK": 0, "WORLD_SIZE": 1, "NODE_RANK": 0, "GROUP_RANK": 0, "MASTER_PORT": 1}
"""Variable -> minimum value."""


def read(source: Source) -> None:
    """Record the variables that are set, in ``source.by_hand`` and as a note.

    Raises:
        SageMakerJobError: If one is not an integer, or below its minimum.

    """
    numbers = {name: source.integer(name, minimum) for name, minimum in _NAMES.items()}
    source.by_hand |= {name: number for name, number in numbers.items() if number is not None}
    source.notes.append(
        f"{_listed(source.by_hand)} are the only launcher variables that are set, so the Trainer's devices and num_nodes"
        " determine the world size, as for Lightning's DDP."
    )


def check(
    found: Mapping[str, int], *, global_rank: int, world_size: int, num_devices: int, is_lightnings: bool
) -> None:
    """Compare the variables that were set with the Trainer's settings.

    Args:
        found: Variable -> value.
        global_rank: Rank of this process.
        world_size: Number of processes.
        num_devices: Number of devices of this host.
        is_lightnings: Whether each process would choose a port for itself, as in Lightning's own environment.

    Raises:
        SageMakerJobError: If they contradict each other, or the processes could not find each other.

    """
    if not found:
        return
    if found.get("LOCAL_RANK", 0) >= num_devices:
        raise SageMakerJobError(
            f"LOCAL_RANK={found['LOCAL_RANK']} is out of range for devices={num_devices}."
            " HINT: set devices to the number of processes on each host, or unset LOCAL_RANK."
        )
    for name, value in (("WORLD_SIZE", world_size), ("RANK", global_rank)):
        if found.get(name, value) != value:
            raise SageMakerJobError(
                f"{name}={found[name]} is set, but devices={num_devices} makes it {value}, with a world size of "
                f"{world_size}."
                " HINT: set devices and num_nodes to what was started, or LOCAL_WORLD_SIZE to the number of processes "
                "on each host."
            )
    if world_size > 1 and is_lightnings and "MASTER_PORT" not in found:
        raise SageMakerJobError(
            f"{_listed(found)} are set, and {world_size} processes are to train, but MASTER_PORT is not set, so they"
            " cannot find each other. HINT: set the same MASTER_PORT (and MASTER_ADDR, on several hosts) for all, start"
            " the script with torchrun, or unset LOCAL_RANK to have Lightning start the processes."
        )


def _listed(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in found.items())
