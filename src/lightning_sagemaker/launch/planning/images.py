# SPDX-License-Identifier: Apache-2.0
"""URIs of AWS's training images, from a table taken from the SageMaker SDK; needs neither network nor the SDK."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.planning.instances import find_instance
from lightning_sagemaker.launch.spec.debugger import DEFAULT_IMAGE, DETAILED
from lightning_sagemaker.smddp_modes import SMDDP_VERSIONS

_Table = dict[str, Any]

DEFAULT_PYTORCH = "2.8.0"
"""PyTorch version of jobs that set none."""

_FIRST_OF_CUDA_11 = {"1.6": "-cu110-ubuntu18.04-v3", "1.6.0": "-cu110-ubuntu18.04"}
"""Version in a tag -> its suffix on ml.p4d and for smdistributed, which need CUDA 11 (SDK 2.257's image_uris)."""

PLUGIN_PYTORCH, PLUGIN_PYTHON = (2, 5), (3, 10)
"""Oldest PyTorch and Python with which this package runs in an image."""


@dataclass(frozen=True)
class Image:
    """A training image.

    Attributes:
        uri: Docker URI of the image.
        pytorch: Version of PyTorch in the image; None for the user's own image.
        python: Version of Python in the image, such as ``(3, 12)``; None for the user's own image.

    """

    uri: str
    pytorch: str | None = None
    python: tuple[int, ...] | None = None

    @property
    def takes_plugin(self) -> bool:
        """Whether this package can run in the image; assumed for the user's own image."""
        if self.pytorch is None or self.python is None:
            return True
        return parse_version(self.pytorch) >= PLUGIN_PYTORCH and self.python >= PLUGIN_PYTHON

    @property
    def smddp(self) -> str | None:
        """Version of AWS's SMDDP in the image; None if it has none or the version is unknown."""
        return SMDDP_VERSIONS.get(self.pytorch or "")


_AWS_URI = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?:(?:huggingface-)?pytorch-training|smdistributed-modelparallel):(?P<pytorch>\d+\.\d+\.\d+)(?:-transformers[\d.]+)?"
    r"-[cg]pu-py(?P<major>\d)(?P<minor>\d*)(?:-.*)?"
)


def named_image(uri: str) -> Image:
    """The image with this URI; its versions are known if it is one of AWS's own, whose tags name them."""
    match, table = _AWS_URI.fullmatch(uri), _table()
    accounts = (
        {table["accounts"].get(match["region"]), *(one["account"] for one in table["smp"].values())} if match else ()
    )
    if match is None or match["account"] not in accounts:
        return Image(uri)
    return Image(uri, match["pytorch"], (int(match["major"]), int(match["minor"] or 0)))


def find_image(
    region: str,
    instance_type: str,
    pytorch_version: str | None = None,
    transformers_version: str | None = None,
    py_version: str | None = None,
    parallel_library: bool = False,
    smdistributed: bool = False,
) -> Image:
    """AWS's training image with these versions.

    Args:
        region: AWS region of the job.
        instance_type: Instance type of the hosts, which selects the GPU or the CPU image.
        pytorch_version: Version of PyTorch, such as ``2.8.0`` or ``2.8``; a default when None.
        transformers_version: Version of transformers, for an image of Hugging Face; None for PyTorch's image.
        py_version: Version of Python, such as ``py312``; the image's default when None.
        parallel_library: Whether to prefer an image with version 2 of AWS's model parallel library, which exists for
            some versions of PyTorch; other images train with this package's engine.
        smdistributed: Whether the distribution is one of ``smdistributed``.

    Raises:
        LaunchError: If there is no such image, or none in the region.

    """
    table, instance = _table(), find_instance(instance_type)
    has_gpu = instance.gpus > 0
    if parallel_library and pytorch_version in table["smp"] and transformers_version is None and pytorch_version:
        found = _parallel_image(table, pytorch_version, instance_type)
        needs_gpu = "AWS's images of model parallelism", "use an instance with GPUs."
    elif transformers_version is None:
        found = _pytorch_image(
            table, pytorch_version, needs_cuda_11=instance_type.startswith("ml.p4d.") or smdistributed
        )
        needs_gpu = None
    else:
        found = _huggingface_image(table, pytorch_version, transformers_version)
        needs_gpu = (
            "Hugging Face's training images",
            "leave transformers_version out; list transformers in requirements.txt.",
        )
    if needs_gpu is not None and not has_gpu:
        raise LaunchError(f"{needs_gpu[0]} need a GPU, and {instance_type} has none. HINT: {needs_gpu[1]}")
    entry, python = found.entry, py_version or found.entry["py"][-1]
    if python not in entry["py"]:
        raise LaunchError(
            f"py_version={python!r} was set, but the image of PyTorch {found.version} has {' or '.join(entry['py'])}. HINT:"
            " leave it out."
        )
    regions = table["regions"][entry["regions"]]
    if region not in regions:
        raise LaunchError(
            f"There is no image of {found.repository} {found.tag} in region {region!r}. HINT:"
            f" {suggestion(region, regions)} Or give image_uri."
        )
    suffix = f"-{entry['suffix']}" if entry.get("suffix") else found.suffix
    account = entry.get("account") or table["accounts"][region]
    name = f"{found.repository}:{found.tag}-{'gpu' if has_gpu else 'cpu'}-{python}{suffix}"
    uri = f"{account}.dkr.ecr.{region}.{_domain(region)}/{name}"
    return Image(uri, found.version, (int(python[2]), int(python[3:] or 0)))


class _Found(NamedTuple):
    """An image of the table: its entry there, PyTorch's version, and what its name has."""

    repository: str
    entry: _Table
    version: str
    tag: str
    suffix: str = ""


def _parallel_image(table: _Table, version: str, instance_type: str) -> _Found:
    cuda = _cuda_of_parallel(version, instance_type)
    return _Found("smdistributed-modelparallel", table["smp"][version], version, version, f"-{cuda}")


def _pytorch_image(table: _Table, pytorch_version: str | None, needs_cuda_11: bool) -> _Found:
    version = _resolve("pytorch_version", pytorch_version or DEFAULT_PYTORCH, table["pytorch"])
    tag = pytorch_version or version
    suffix = _FIRST_OF_CUDA_11.get(tag, "") if needs_cuda_11 else ""
    return _Found("pytorch-training", table["pytorch"][version], version, tag, suffix)


def _huggingface_image(table: _Table, pytorch_version: str | None, transformers_version: str) -> _Found:
    transformers = _resolve("transformers_version", transformers_version, table["huggingface"])
    bases = table["huggingface"][transformers]
    version = _resolve(
        "pytorch_version", pytorch_version or list(bases)[-1], bases, f" with transformers {transformers}"
    )
    # As in SDK 2, short versions stay short in the tag if both are; AWS has these tags too.
    in_short = pytorch_version not in (None, version) and transformers_version != transformers
    tag = f"{pytorch_version if in_short else version}-transformers{transformers_version if in_short else transformers}"
    return _Found("huggingface-pytorch-training", bases[version], version, tag)


def evaluator_image(image: str, name: str, region: str) -> str:
    """URI of the image that a rule of SageMaker Debugger runs in.

    Args:
        image: URI of the image, or SDK 2's placeholder for AWS's own image.
        name: Name of the rule.
        region: AWS region of the job.

    Raises:
        LaunchError: If AWS has no such image in the region.

    """
    if image != DEFAULT_IMAGE:
        return image
    table = _table()["rules"]["detailed-profiler" if name.startswith(DETAILED) else "debugger"]
    account = table["accounts"].get(region)
    if account is None:
        raise LaunchError(
            f"There is no image of {table['repository']} in region {region!r}. HINT: leave the rules out, or choose one of"
            f" {', '.join(table['accounts'])}."
        )
    return f"{account}.dkr.ecr.{region}.{_domain(region)}/{table['repository']}:latest"


def check_region(region: str) -> None:
    """Check that a region is one of AWS's.

    Raises:
        LaunchError: If AWS has no training image there.

    """
    known = _table()["accounts"]
    if region not in known:
        raise LaunchError(f"region={region!r} was set. HINT: {suggestion(region, known)} ({image_table_date()})")


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _cuda_of_parallel(version: str, instance_type: str) -> str:
    """CUDA version in a model parallel image's tag, by the rule of SDK 2.257's ``get_training_image_uri``."""
    if version.startswith("2.5"):
        return "cu124"
    is_newer = version.startswith(("2.1", "2.2", "2.3", "2.4"))
    return "cu121" if is_newer or "p5" in instance_type else "cu118"


def parse_version(text: str) -> tuple[int, ...]:
    """The numeric components of a version, without a local suffix such as ``+cu128``."""
    return tuple(int(part) for part in text.split("+")[0].split(".") if part.isdigit())


def image_table_date() -> str:
    """Date and source of the table of images, as text."""
    table = _table()
    return f"{table['date']}, {table['source']}"


def _resolve(what: str, asked: str, known: dict[str, object], where: str = "") -> str:
    if asked in known:
        return asked
    patches = [version for version in known if version.startswith(f"{asked}.")]
    if patches:
        return max(patches, key=parse_version)
    raise LaunchError(
        f"{what}={asked!r} has no image{where}. HINT: there are {', '.join(sorted(known, key=parse_version))}"
        f" ({image_table_date()})."
    )


@cache
def _table() -> _Table:
    content: dict[str, Any] = json.loads((resources.files(__package__) / "data" / "images.json").read_text())
    return content
