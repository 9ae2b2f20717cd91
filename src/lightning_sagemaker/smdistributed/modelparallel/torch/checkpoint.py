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
from lightning_sagemaker.smdistributed.modelparallel.torch.core import (
    mp_rank,
    pp_rank,
    pp_size,
    rdp_rank,
    rdp_size,
    tp_rank,
    tp_size,
)
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, MapLocation, StateDict
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
        num_kept_partial_checkpoints: Number of partial checkpoints to keep, this one included; default: all.

    Raises:
        ValueError: If ``num_kept_partial_checkpoints`` is negative.

    """
    if (num_kept_partial_checkpoints or 0) < 0:
        raise ValueError(
            f"num_kept_partial_checkpoints={num_kept_partial_checkpoints} was set. HINT: set how many to keep, or None for"
            " all."
        )
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
            _drop_other_layouts(place)
            newest = folder / f".{NEWEST}.{os.getpid()}"
            newest.write_text(f"{tag}_partial" if partial else tag)
            newest.replace(folder / NEWEST)
            if partial and num_kept_partial_checkpoints:
                _keep(folder, num_kept_partial_checkpoints, place)

    run_and_sync_errors(write, state.objects)
    run_and_sync_errors(point, state.objects)  # only to a complete checkpoint


def _keep(folder: Path, count: int, newest: Path) -> None:
    """Delete the oldest partial checkpoints, by the numbers in their tags (copies from S3 have new times), then by time."""

    def age(place: Path) -> tuple[list[int], float]:
        return [int(number) for number in re.findall(r"\d+", place.name)] or [-1], place.stat().st_mtime

    others = sorted((one for one in folder.glob("*_partial") if one.is_dir() and one != newest), key=age)
    for place in others[: max(0, len(others) + 1 - count)]:
        shutil.rmtree(place)


def _drop_other_layouts(place: Path) -> None:
    """Delete what an earlier job of another layout has saved by the same tag."""
    for name in ("model", "optimizer"):
        for path in place.glob(f"{name}_*.pt"):
            if path.stem.removeprefix(f"{name}_") not in _layout():
                path.unlink()


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
        RuntimeError: On all processes, if a partial checkpoint lacks the part of one, is of another layout, or holds a state
            for which there is no distributed model or optimizer yet.
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
        if state.model is None:
            raise RuntimeError(
                f"{folder / tag} was to be resumed, but there is no smp.DistributedModel yet. HINT: call"
                " smp.resume_from_checkpoint after smp.DistributedModel(...)."
            )
        whole = torch.load(folder / tag, map_location="cpu", weights_only=True)
        state.model.load_state_dict(whole if translate_function is None else translate_function(whole), strict=strict)
        return _user_content(folder / f"user_content_{tag}", folder / "user_content.pt")
    place = folder / f"{tag}_partial"
    parts: dict[str, StateDict] = {}

    def read() -> None:
        for name, owner in (("model", state.model), ("optimizer", state.optimizer if load_optimizer else None)):
            if name == "model" or load_optimizer:
                _check_part(place, name, owner)
            if owner is not None:
                parts[name] = torch.load(place / f"{name}_{_rank_info()}.pt", map_location="cpu", weights_only=True)

    run_and_sync_errors(read, state.objects)  # before any rank waits for the others' parts
    if "model" in parts:
        state.model.load_state_dict(parts["model"], strict=strict)
    if "optimizer" in parts:
        state.optimizer.load_state_dict(parts["optimizer"])
    return _user_content(place / "user_content.pt")


def _check_part(place: Path, name: str, owner: object) -> None:
    """Raise where a partial checkpoint is not for this process, or nothing would take its content."""
    found = {one.stem.removeprefix(f"{name}_"): one.name for one in place.glob(f"{name}_*.pt")}
    if owner is None and found:
        wrapper = {"model": "smp.DistributedModel", "optimizer": "smp.DistributedOptimizer"}[name]
        raise RuntimeError(
            f"{place} holds the state of {'a model' if name == 'model' else 'an optimizer'}, but there is no {wrapper} yet."
            f" HINT: call smp.resume_from_checkpoint after {wrapper}(...)"
            f"{'' if name == 'model' else ', or pass load_optimizer=False'}."
        )
    if owner is None or (set(found) <= _layout() and _rank_info() in found):
        return
    if not found:
        raise FileNotFoundError(
            f"{place} has no state of the {name}. HINT: name a checkpoint that smp.save_checkpoint has written with"
            f" partial=True and {name}=...{', or pass load_optimizer=False' if name == 'optimizer' else ''}."
        )
    raise FileNotFoundError(
        f"{place} was saved in another layout: it has {', '.join(sorted(found.values()))}, and this job needs"
        f" {', '.join(f'{name}_{one}.pt' for one in sorted(_layout()))}. HINT: resume a partial checkpoint with the same"
        " partitions, tensor_parallel_degree and shard degree; one of smp.save_checkpoint(partial=False) fits any."
    )


def _layout() -> set[str]:
    """The ranks that have parts of a checkpoint, as they are in the names of files."""
    places = [f"{stage}_{shard}" for stage in range(pp_size()) for shard in range(tp_size())]
    return {f"{place}_{copy}" for place in places for copy in range(rdp_size())} if _is_sharded() else set(places)


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
