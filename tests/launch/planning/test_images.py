# SPDX-License-Identifier: Apache-2.0
"""The images that jobs run in, against the SageMaker SDK's own tables."""

from lightning_sagemaker.launch.planning.images import find_image
from tests.launch.conftest import has_sdk


def test_images_are_those_of_the_sdk():
    assert has_sdk()
    from sagemaker.core import image_uris

    for kind, has_gpu in (("ml.p4d.24xlarge", True), ("ml.m5.xlarge", False)):
        for version in ("2.5.1", "2.6.0", "2.8.0", "2.10.0"):
            for region in ("us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"):
                ours = find_image(region, kind, version)
                python = f"py{ours.python[0]}{ours.python[1]}"
                theirs = image_uris.retrieve(
                    framework="pytorch", region=region, version=version, py_version=python, instance_type=kind,
                    image_scope="training",
                )  # fmt: skip
                assert ours.uri == theirs
        if has_gpu:
            for transformers, pytorch in (
                ("4.56.2", "2.8.0"),
                ("4.49.0", "2.5.1"),
                ("5.3.0", "2.9.0"),
                ("4.6.1", "1.7.1"),
            ):
                ours = find_image("us-west-2", kind, pytorch, transformers)
                theirs = image_uris.retrieve(
                    framework="huggingface", region="us-west-2", version=transformers, instance_type=kind,
                    base_framework_version=f"pytorch{pytorch}", image_scope="training",
                    py_version="py" + "".join(map(str, ours.python)),
                )  # fmt: skip
                assert ours.uri == theirs
