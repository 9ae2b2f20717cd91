# SPDX-License-Identifier: Apache-2.0
"""Print the job as this process detects it, the strategy chosen and why, versions, devices, and what looks wrong.

Then try what every run needs: an all-reduce between two processes, a batch from a DataLoader worker, Lightning's
cluster environments. Works anywhere: on a laptop, under torchrun or mpirun, in a simulated or a real SageMaker job.

``--goodput`` prints only where the time of a supervised job went.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import socket
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.job import SageMakerJob, SageMakerJobError
from lightning_sagemaker.job.failure import is_secret
from lightning_sagemaker.preflight import preflight
from lightning_sagemaker.selection import select_smddp_backend, select_strategy
from lightning_sagemaker.smddp_modes import NEWEST, job_engines
from lightning_sagemaker.trial import try_all

HELP = "show the detected job, the strategy and its reason, versions, devices, and problems"

_PACKAGES = ("lightning-sagemaker", "torch", "lightning", "pytorch-lightning", "transformers", "torchmetrics", "mpi4py")
_WITHDRAWN = ("2.6.2", "2.6.3")
"""Releases of Lightning that were withdrawn after a supply-chain compromise (2026)."""

_INTERFACES = Path("/sys/class/net")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``lightning-sagemaker doctor``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="skip the checks that start processes")
    parser.add_argument(
        "--preflight", action="store_true", help="only check folders, disk space, memory and host names"
    )
    parser.add_argument(
        "--goodput",
        type=Path,
        metavar="FILE",
        help="only print where a supervised job's time went, from its recovery.jsonl",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --goodput: also draw it (SVG)")


def main(arguments: argparse.Namespace) -> int:
    """Print the report; the exit code is 1 if the job cannot be read or a trial fails."""
    _check_together(arguments)
    if arguments.preflight:
        return _print_preflight()
    if arguments.goodput is not None:
        return _print_goodput(arguments.goodput, arguments.output)
    report = examine(quick=arguments.quick)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(_lines(report)))
    return 1 if "error" in report or any(trial["problems"] for trial in report["trials"]) else 0


def _check_together(arguments: argparse.Namespace) -> None:
    given = [name for name in ("goodput", "preflight", "quick", "json") if getattr(arguments, name)]
    if len(given) > 1 and given != ["quick", "json"]:
        words = " and ".join(f"--{name}" for name in given)
        raise CommandError(f"{words} were set. HINT: only --quick and --json go together; choose one report.")
    if arguments.output is not None and arguments.goodput is None:
        raise CommandError("--output was set without --goodput, the only report that is drawn. HINT: leave it out.")


def _print_preflight() -> int:
    try:
        problems = preflight(SageMakerJob.from_environment())
    except SageMakerJobError as error:
        problems = [str(error)]
    print("\n".join(problems) or "Ready to start.")
    return 1 if problems else 0


def _print_goodput(place: Path, picture: Path | None) -> int:
    from lightning_sagemaker.supervisor import goodput, goodput_picture

    try:
        found = goodput.read(place)
        print("\n".join(goodput.table(found)))
        if picture is not None:
            picture.write_text(goodput_picture.draw(found))
    except OSError as error:
        raise CommandError(f"{error}. HINT: --goodput needs a readable file, and --output a writable one.") from error
    return 0


def examine(quick: bool = False) -> dict[str, Any]:
    """Everything that ``doctor`` reports, as values that JSON can represent.

    Args:
        quick: Whether to skip the checks that start processes.

    Returns:
        ``job`` (field -> ``{"value", "source"}``), ``selection`` (what the user writes -> ``Selection``'s fields),
        ``smddp`` (fields of :class:`~lightning_sagemaker.smddp_modes.SmddpEngines`), ``versions``, ``devices``,
        ``trials`` (fields of :class:`~lightning_sagemaker.trial.Trial`) and ``problems``; ``error`` instead of the
        first three when the job cannot be read.

    """
    report: dict[str, Any] = {}
    problems: list[str] = []
    try:
        job = SageMakerJob.from_environment()
        engines = job_engines(job)
    except SageMakerJobError as error:
        report["error"] = str(error)
    else:
        report["job"] = _describe(job)
        report["selection"] = {
            'strategy="sagemaker"': dataclasses.asdict(select_strategy(job)),
            'strategy="smddp"': dataclasses.asdict(select_smddp_backend(job)),
        }
        report["smddp"] = {"version": job.smddp_version, **_plain(engines)}
        problems += [*job.notes, *engines.notes, *_problems_of(job)]
    report["versions"] = versions = _versions()
    report["devices"] = _devices()
    problems += [
        f"Lightning {versions[name]} was yanked. HINT: install another release of {name}."
        for name in ("lightning", "pytorch-lightning")
        if versions[name] in _WITHDRAWN
    ]
    report["trials"] = [] if quick else [dataclasses.asdict(trial) for trial in try_all()]
    problems += [problem for trial in report["trials"] for problem in trial["problems"]]
    report["problems"] = problems
    return report


def _describe(job: SageMakerJob) -> dict[str, dict[str, object]]:
    skipped = ("notes", "sources")
    names = [field.name for field in dataclasses.fields(job) if field.name not in skipped]
    return {name: {"value": _plain(getattr(job, name)), "source": job.sources.get(name, "")} for name in names}


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): "***" if is_secret(str(key)) else _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _problems_of(job: SageMakerJob) -> Iterator[str]:
    name = job.network_interface
    if name is not None and _INTERFACES.is_dir() and not (_INTERFACES / name).exists():
        yield (
            f"The network interface {name!r} does not exist on this host."
            f" HINT: unset NCCL_SOCKET_IFNAME if it is set to {name!r}."
        )
    if not job.in_container and not _has_address(own := socket.gethostname()):
        yield (
            f"This machine's host name {own!r} does not resolve, so torchrun --standalone would hang."
            " HINT: add the name to the line of 127.0.0.1 in /etc/hosts, or run torchrun without --standalone."
        )
    if job.num_nodes > 1:
        try:
            socket.getaddrinfo(job.known_address(), job.main_port)
        except SageMakerJobError as error:
            yield str(error)
        except (OSError, UnicodeError) as error:
            yield (
                f"The main host {job.main_address!r} does not resolve yet ({error}). HINT: in a container host names may"
                " take some seconds to resolve; elsewhere set MASTER_ADDR to a reachable name."
            )


def _has_address(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _versions() -> dict[str, str | None]:
    from lightning_sagemaker.smdistributed import importer

    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["nccl"] = _nccl_version()
    found["smdistributed.dataparallel"] = "AWS's" if importer.aws_installed() else "the open shim of this package"
    return found


def _nccl_version() -> str | None:
    import torch

    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _devices() -> list[str]:
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return gpus or [f"CPU ({platform.processor() or platform.machine()})"]


def _smddp_lines(smddp: Mapping[str, Any]) -> Iterator[str]:
    """Lines about which engine runs each collective, and which collectives are refused."""
    yield f"SMDDP {smddp['version'] or f'(where it is absent, the shim of {NEWEST})'}"
    for name, title in (("all_reduce", "AllReduce"), ("all_gather", "AllGather")):
        yield f"  {title:<17}  {smddp[name]['name']:<8}  {smddp[name]['reason']}"
    for name, title in (("sub_groups", "new_group"), ("other_collectives", "other collectives")):
        yield f"  {title:<17}  {'refused' if smddp[name]['refused'] else 'allowed':<8}  {smddp[name]['reason']}"


def _show(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    if "error" in report:
        yield from ("The job cannot be read:", f"  {report['error']}", "")
    else:
        yield "Job"
        width = max(map(len, report["job"]))
        for name, fact in report["job"].items():
            yield f"  {name:<{width}}  {_show(fact['value'])}" + (f"  ({fact['source']})" if fact["source"] else "")
        yield from ("", "Selection")
        for written, chosen in report["selection"].items():
            yield f"  {written} is {chosen['name']} with backend {chosen['backend']}. {chosen['reason']}"
        yield from ("", *_smddp_lines(report["smddp"]), "")
    yield "Versions"
    for name, number in report["versions"].items():
        yield f"  {name:<26}  {number or 'none'}"
    yield from ("", "Devices", *(f"  {name}" for name in report["devices"]), "")
    if report["trials"]:
        yield "Tried"
        for trial in report["trials"]:
            outcome = "DOES NOT WORK" if trial["problems"] else "works"
            yield f"  {trial['what']:<33}  {trial['seconds']:5.1f} s  {outcome}"
        yield ""
    yield "What looks wrong" if report["problems"] else "Nothing looks wrong." if "error" not in report else ""
    yield from (f"  - {problem}" for problem in report["problems"])
