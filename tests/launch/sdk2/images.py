# SPDX-License-Identifier: Apache-2.0
"""Every image that SDK 2 resolves: version by Python by instance type by region, outside isolated regions.

``python -m tests.launch.sdk2.images FILE`` in SDK 2's environment writes all of them; a sample is in
``data/sdk2_images.json``.
"""

import contextlib
import functools
import json
import logging
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "data" / "sdk2_images.json"
ISOLATED = ("-iso", "eusc-")
OLDEST = (1, 6)
INSTANCES = ("ml.m5.large", "ml.c7i.2xlarge", "ml.g5.xlarge", "ml.g6e.xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge")
SMP = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"tensor_parallel_degree": 2}}},
    "torch_distributed": {"enabled": True},
}


def resolve_all():
    """Key -> address; a key is library, versions, Python, instance type and region."""
    import sagemaker.utils
    from sagemaker import image_uris

    sagemaker.utils._botocore_resolver = functools.cache(
        sagemaker.utils._botocore_resolver
    )  # reads a file at each call
    folder = Path(image_uris.__file__).parent / "image_uri_config"
    image_uris.config_for_framework = functools.cache(image_uris.config_for_framework)
    found = {}

    def add(library, versions, entry, **more):
        for python in entry["py_versions"]:
            for region in entry["registries"]:
                for instance in INSTANCES:
                    if any(part in region for part in ISOLATED):
                        continue
                    with contextlib.suppress(ValueError):  # no such image, such as Hugging Face's for processors
                        found[" ".join([library, *versions, python, instance, region])] = (
                            image_uris.get_training_image_uri(region, instance_type=instance, py_version=python, **more)
                        )

    for version, entry in _versions(folder / "pytorch.json"):
        add("pytorch", [version], entry, framework="pytorch", framework_version=version)
    for version, entry in _versions(folder / "pytorch-smp.json"):
        if tuple(map(int, version.split("."))) >= (2, 6):
            continue  # versions of the library: SDK 2 makes addresses of them, of images of PyTorch that never were
        add("smp", [version], entry, framework="pytorch", framework_version=version, distribution=SMP)
    for version, bases in _versions(folder / "huggingface.json"):
        aliases = bases.get("version_aliases", {}) if version.count(".") == 1 else {base: base for base in bases}
        for base, full in aliases.items():  # SDK 2's estimator wants both versions in full, or both in short
            if base.startswith("pytorch"):
                entry = bases[full]
                torch = base.removeprefix("pytorch")
                add(
                    "huggingface", [version, torch], entry,
                    framework="huggingface", framework_version=version, pytorch_version=torch,
                )  # fmt: skip
    return found


def _versions(path):
    """Version and entry, of all that can be asked for: aliases name another version's entry."""
    table = json.loads(path.read_text())["training"]
    asked = {**{version: version for version in table["versions"]}, **table.get("version_aliases", {})}
    for version, entry in asked.items():
        if path.name != "pytorch.json" or tuple(map(int, version.split(".")[:2])) >= OLDEST:
            yield version, table["versions"][entry]


def ours(key):
    """Our address for a key, or the error."""
    from lightning_sagemaker.errors import LaunchError
    from lightning_sagemaker.launch.planning.images import find_image

    framework, *versions, python, instance, region = key.split()
    torch, transformers = (versions[1], versions[0]) if framework == "huggingface" else (versions[0], None)
    try:
        return find_image(region, instance, torch, transformers, python, parallel_library=framework == "smp").uri
    except LaunchError as error:
        return str(error)


def sample(found):
    """Of each version some instances in one region, and of each region one image."""
    few = ("ml.m5.large us-east-1", "ml.g6e.xlarge us-east-1", "ml.p5.48xlarge us-east-1")
    kept = {key: uri for key, uri in found.items() if key.endswith(few) or " 2.5.1 py311 ml.g5.xlarge " in key}
    return dict(sorted(kept.items()))


def main():
    logging.disable(logging.CRITICAL)
    found = resolve_all()
    Path(sys.argv[1]).write_text(json.dumps(found))
    SAMPLE.write_text(json.dumps(sample(found), indent=0) + "\n")
    print(f"{len(found)} addresses of images, {len(sample(found))} kept")


if __name__ == "__main__":
    main()
