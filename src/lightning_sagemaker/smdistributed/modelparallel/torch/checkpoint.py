# SPDX-License-Identifier: Apache-2.0
"""``smp.save``, ``smp.load``, ``smp.save_checkpoint`` and ``smp.resume_from_checkpoint``, with AWS's file names.

Loading reads tensors and plain containers only (``weights_only``), unless the caller passes ``weights_only=False``; what
the script saved beside the model may also hold numbers of NumPy and the model's configuration.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from lightning_sagemaker.collectives.agreement import run_and_sync_errors
from lightning_sagemaker.smdistributed.modelparallel.torch.core import mp_rank, pp_rank, rdp_rank, tp_rank, tp_size
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, MapLocation
    from lightning_sagemaker.smdistributed.modelparallel.torch.model import DistributedModel
    from lightning_sagemaker.smdistributed.modelparallel.torch.optimizer import DistributedOptimizer


NEWEST = "newest"


def _own(path: str | os.PathLike[str], v3: bool = False) -> Path:
    """The path of this process's file, with AWS's suffix."""
    suffix = f"{pp_rank()}_{tp_rank()}" if v3 or _is_sharded() or tp_size() > 1 else f"{mp_rank()}"
    suffix = f"{suffix}_{rdp_rank()}" if v3 or _is_sharded() else suffix
    return Path(f"{os.fspath(path)}_{suffix}")


def save(
    obj: object,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: object = None,
    pickle_protocol: int = 2,
    *,
    v3: bool = False,
) -> None:
    """Write an object atomically: under a temporary name, then renamed.

    Args:
        obj: Any object that ``torch.save`` takes.
        f: Path of the file; with ``partial``, followed by ``_`` and the ``mp_rank``, or, with tensor parallelism, by the
            suffix ``PP_TP``.
        partial: Whether each process of a model replica writes a file of its own.
        pickle_module: Without effect.
        pickle_protocol: Without effect.
        v3: Use the suffix ``PP_TP_RDP``, for states that differ among replicas; always so if parameters are sharded.

    """
    path = _own(f, v3) if partial else Path(f)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(obj, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(
    f: str | os.PathLike[str],
    map_location: MapLocation = None,
    pickle_module: object = None,
    pickle_load_args: object = None,
    partial: bool = True,
    *,
    v3: bool = False,
    back_compat: bool = False,
    weights_only: bool = True,
) -> Any:
    """Read what :func:`save` wrote.

    Args:
        f: Path of the file, without its suffix.
        map_location: As in ``torch.load``.
        pickle_module: Without effect.
        pickle_load_args: Without effect.
        partial: Whether to read this process's own file.
        v3: As in :func:`save`.
        back_compat: Without effect.
        weights_only: As in ``torch.load``.

    """
    path = _own(f, v3) if partial else Path(f)
    return torch.load(path, map_location=map_location, weights_only=weights_only)


def _is_sharded() -> bool:
    """Whether parameters are sharded across replicas, so that all processes have different states."""
    return state.groups.degrees.shard > 1


def _rank_info() -> str:
    place = f"{pp_rank()}_{tp_rank()}"
    return f"{place}_{rdp_rank()}" if _is_sharded() else place


def save_checkpoint(
    path: str | os.PathLike[str],
    tag: str,
    partial: bool = True,
    model: DistributedModel | None = None,
    optimizer: DistributedOptimizer | None = None,
    user_content: object = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Write a checkpoint. Collective over all processes.

    Args:
        path: Folder of the checkpoints.
        tag: Name of the checkpoint.
        partial: Each process of the first model replica writes ``path/TAG_partial/model_PP_TP.pt`` and
            ``optimizer_PP_TP.pt``, or, if parameters are sharded, every process ``..._PP_TP_RDP.pt``. If false, the
            first process writes the full model as ``path/TAG``.
        model: The distributed model.
        optimizer: The distributed optimizer; not part of a full checkpoint.
        user_content: Any other object to save.
        translate_if_full: Without effect: names are those of the user's model.
        num_kept_partial_checkpoints: Number of partial checkpoints to keep; default: all.

    """
    folder = Path(path)
    is_first = state.groups.rank == 0
    place = folder / f"{tag}_partial"
    whole = None if partial or model is None else model.state_dict(gather_to_rank0=True)

    def write() -> None:
        if partial and (rdp_rank() == 0 or _is_sharded()):
            for name, part in (("model", model), ("optimizer", optimizer)):
                if part is not None:
                    save(part.local_state_dict(), place / f"{name}_{_rank_info()}.pt", partial=False)
        if is_first and whole is not None:
            save(whole, folder / tag, partial=False)
        if is_first and user_content is not None:
            save(user_content, place / "user_content.pt" if partial else folder / f"user_content_{tag}", partial=False)

    def point() -> None:
        if is_first:
            newest = folder / f".{NEWEST}.{os.getpid()}"
            newest.write_text(f"{tag}_partial" if partial else tag)
            newest.replace(folder / NEWEST)
            if partial and num_kept_partial_checkpoints:
                _keep(folder, num_kept_partial_checkpoints)

    run_and_sync_errors(write, state.objects)
    run_and_sync_errors(point, state.objects)  # only to a complete checkpoint


def _keep(folder: Path, count: int) -> None:
    found = [place for place in folder.glob("*_partial") if place.is_dir()]
    found.sort(key=lambda place: [int(number) for number in re.findall(r"\d+", place.name)] or [-1])
    for place in found[:-count]:
        shutil.rmtree(place)


def resume_from_checkpoint(
    path: str | os.PathLike[str],
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[Checkpoint], Checkpoint] | None = None,
) -> object:
    """Load what :func:`save_checkpoint` wrote, into the distributed model and optimizer. Collective.

    Args:
        path: Folder of the checkpoints.
        tag: Name of the checkpoint; the newest if None.
        partial: Whether the checkpoint is partial; ignored if ``tag`` is None.
        strict: Whether names must be those of the model.
        load_optimizer: Whether to load the optimizer of a partial checkpoint.
        load_sharded_optimizer_state: Without effect: states are not sharded among replicas.
        translate_function: Applied to a full state.

    Returns:
        The saved ``user_content``; None if there was none.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        pickle.UnpicklingError: If ``user_content`` holds other objects than plain ones, numbers of NumPy and the
            configurations of the model.

    """
    folder = Path(path)
    if tag is None:
        newest = folder / NEWEST
        if not newest.is_file():
            raise FileNotFoundError(
                f"{folder} has no file {NEWEST}, which smp.save_checkpoint writes. HINT: call smp.resume_from_checkpoint"
                " only after it, or pass tag=...."
            )
        tag = newest.read_text().strip()
        partial = tag.endswith("_partial")
        tag = tag.removesuffix("_partial")
    if not partial:
        whole = torch.load(folder / tag, map_location="cpu", weights_only=True)
        state.model.load_state_dict(whole if translate_function is None else translate_function(whole), strict=strict)
        return _user_content(folder / f"user_content_{tag}", folder / "user_content.pt")
    place = folder / f"{tag}_partial"
    if state.model is not None:
        own = torch.load(place / f"model_{_rank_info()}.pt", map_location="cpu", weights_only=True)
        state.model.load_state_dict(own, strict=strict)
    if load_optimizer and state.optimizer is not None:
        own = torch.load(place / f"optimizer_{_rank_info()}.pt", map_location="cpu", weights_only=True)
        state.optimizer.load_state_dict(own)
    return _user_content(place / "user_content.pt")


def _user_content(*paths: Path) -> object:
    for path in paths:
        if path.is_file() and path.stat().st_size:  # transformers leaves an empty file
            return _read_content(path)
    return None


def _read_content(path: Path) -> object:
    """What the script saved beside the model: AWS's samples count parameters by NumPy, and save the configuration."""
    scalar = np.int64().__reduce__()[0]  # the function that makes one: NumPy 2 has moved it
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}
    configurations = {type(module.config) for module in _modules() if hasattr(module, "config")}
    try:
        with torch.serialization.safe_globals([scalar, np.dtype, *kinds, *configurations]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"Unsupported (?:global: GLOBAL|class) (\S+)", str(error))
        raise pickle.UnpicklingError(
            f"the user_content in {path} holds {refused[1] if refused else 'objects'}, and is not loaded, as that could"
            " run code. HINT: save plain values, tensors, NumPy numbers or the model's configuration; if you trust the"
            " file, call torch.serialization.add_safe_globals([...]) with its classes before smp.resume_from_checkpoint."
        ) from error


def _modules() -> Iterable[nn.Module]:
    return () if state.model is None else state.model.modules()
