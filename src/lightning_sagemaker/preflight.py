# SPDX-License-Identifier: Apache-2.0
"""What would end a job hours later, looked at before it begins. Does not import torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lightning_sagemaker.job import Launcher, SageMakerJob

_SHARED_MEMORY = Path("/dev/shm")
_PER_GPU = 2**30
"""Bytes of shared memory per GPU, below which loader processes often die with a bus error (Docker's default is 64 MB)."""
_SECONDS = 3.0


def preflight(job: SageMakerJob, shared_memory: Path = _SHARED_MEMORY) -> list[str]:
    """One sentence for each thing that will go wrong, with what to do; empty if all is well.

    Args:
        job: As read on this host.
        shared_memory: Where the loader's processes put batches.

    """
    folders = (job.checkpoint_dir, job.output_dir, job.model_dir) if job.in_container else ()
    return [
        *(problem for folder in folders for problem in _writable(folder)),
        *(_room(job.checkpoint_dir) if job.in_container else ()),
        *_shared_memory(job, shared_memory),
        *_rendezvous(job),
    ]


def _writable(folder: Path) -> Iterator[str]:
    try:
        probe = _nearest(folder) / f".preflight-{os.getpid()}"
        try:
            probe.write_bytes(b"x")
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
    except OSError as error:
        yield f"{folder} cannot be written to ({error.strerror}). HINT: check the volume's size and the image's user."


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest of those above it that exists: a check creates none."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
            return place
    return folder


def _room(folder: Path) -> Iterator[str]:
    """A checkpoint is written before the previous one is deleted, so there must be space for another one of the largest."""
    sizes = [_size(path) for path in folder.glob("*.ckpt")] if folder.is_dir() else []
    if not sizes:
        return
    free = shutil.disk_usage(folder).free
    if free < max(sizes):
        yield (
            f"{folder} has {free / 2**20:.0f} MiB left, but a checkpoint there has {max(sizes) / 2**20:.0f} MiB, and the"
            " next one needs as much again. HINT: set a larger volume_size, or delete old ones."
        )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def unusable_shared_memory(place: Path = _SHARED_MEMORY) -> str | None:
    """Why loader processes cannot pass batches on this host; None where they can, and on systems without the folder."""
    if sys.platform != "linux":
        return None
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix="lightning-sagemaker-"):
            return None
    except OSError as error:
        return (
            f"{place} cannot be written to ({error.strerror}), and loader workers pass their batches through it. HINT: mount"
            " it as in any container (tmpfs, mode 1777), or set num_workers=0."
        )


def _shared_memory(job: SageMakerJob, place: Path) -> Iterator[str]:
    if (problem := unusable_shared_memory(place)) is not None:
        yield problem
    if not place.is_dir():
        return
    size, needed = shutil.disk_usage(place).total, max(1, job.num_gpus) * _PER_GPU
    if job.num_gpus and size < needed:
        yield (
            f"{place} has {size / 2**20:.0f} MiB for {job.num_gpus} GPUs, and loader workers put their batches there."
            " HINT: start the container with --shm-size, or set num_workers=0."
        )


def _rendezvous(job: SageMakerJob) -> Iterator[str]:
    names = () if job.simulated else job.hosts  # those of simulated hosts resolve where the kernel permits it
    for host in filter(None, (*names, job.main_address)):
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            yield f"the name {host} does not resolve. HINT: hosts find each other by name; check the VPC's DNS settings."
    if job.node_rank == 0 and job.num_nodes > 1 and job.launcher is Launcher.NONE:  # a launcher has it already
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", job.main_port))
            except OSError as error:
                yield (
                    f"port {job.main_port}, the rendezvous port, is in use ({error.strerror}). HINT: stop the process that"
                    " uses it, or set MASTER_PORT."
                )
