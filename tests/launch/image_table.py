# SPDX-License-Identifier: Apache-2.0
"""Makes ``launch/planning/data/images.json`` from the SageMaker SDK's tables: ``python -m tests.launch.image_table``."""

import json
from datetime import date
from importlib import metadata, resources
from pathlib import Path

from tests.conftest import ROOT

OLDEST = (1, 6)
"""The first PyTorch for which SMDDP was made."""

OLD_SUFFIX = "cu110-ubuntu18.04"
"""Of Hugging Face's first images, which the SDK's estimators add where the table has none."""

ISOLATED = ("-iso", "eusc-")
"""Partitions that the SDK itself has no addresses for."""

RULES = ("debugger", "detailed-profiler")
"""Tables of the images that rules of SageMaker Debugger run in."""

TABLE = ROOT / "src" / "lightning_sagemaker" / "launch" / "planning" / "data" / "images.json"


def rules(table: dict) -> dict:
    """The one version there is."""
    (entry,) = table["versions"].values()
    return {"repository": entry["repository"], "accounts": entry["registries"]}


def main() -> None:
    folder = Path(str(resources.files("sagemaker.core") / "image_uri_config"))
    accounts: dict[str, str] = {}
    regions: list[list[str]] = []

    def group(registries: dict[str, str], own_account: bool = False) -> int:
        open_to_all = {
            name: account for name, account in registries.items() if not any(part in name for part in ISOLATED)
        }
        if not own_account:
            accounts.update(open_to_all)
        names = sorted(open_to_all)
        if names not in regions:
            regions.append(names)
        return regions.index(names)

    pytorch = json.loads((folder / "pytorch.json").read_text())["training"]["versions"]
    parallel = json.loads((folder / "pytorch-smp.json").read_text())["training"]
    of_pytorch = {**{version: version for version in parallel["versions"]}, **parallel["version_aliases"]}
    hugging_face = json.loads((folder / "huggingface.json").read_text())["training"]["versions"]
    table = {
        "date": date.today().isoformat(),
        "source": f"image_uri_config of sagemaker-core {metadata.version('sagemaker-core')}",
        "pytorch": {
            version: {"py": entry["py_versions"], "regions": group(entry["registries"])}
            for version, entry in pytorch.items()
            if tuple(map(int, version.split(".")[:2])) >= OLDEST
        },
        "smp": {  # by the version of PyTorch; entries are those of the library's versions
            version: {
                "py": parallel["versions"][entry]["py_versions"],
                "regions": group(parallel["versions"][entry]["registries"], own_account=True),
                "account": next(iter(parallel["versions"][entry]["registries"].values())),  # one in all regions
            }
            for version, entry in sorted(of_pytorch.items())
            if tuple(map(int, version.split("."))) < (2, 6)  # the others are versions of the library, not of PyTorch
        },
        "huggingface": {
            version: {
                base.removeprefix("pytorch"): {
                    "py": entry["py_versions"],
                    "suffix": entry.get("container_version", {}).get("gpu", OLD_SUFFIX),
                    "regions": group(entry["registries"]),
                }
                for base, entry in bases.items()
                if base.startswith("pytorch")
            }
            for version, bases in hugging_face.items()
        },
    }
    table["rules"] = {kind: rules(json.loads((folder / f"{kind}.json").read_text())) for kind in RULES}
    table |= {"regions": regions, "accounts": dict(sorted(accounts.items()))}
    TABLE.write_text(json.dumps(table, indent=None, separators=(", ", ": ")).replace("}, ", "},\n ") + "\n")


if __name__ == "__main__":
    main()
