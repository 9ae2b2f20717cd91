# SPDX-License-Identifier: Apache-2.0
"""The images that jobs run in, against the SageMaker SDK's own tables."""

import pytest

from lightning_sagemaker.launch import Estimator
from lightning_sagemaker.launch.planning.images import find_image, named_image
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


@pytest.mark.parametrize(
    ("tag", "pytorch", "takes_plugin", "smddp"),
    [
        ("huggingface-pytorch-training:1.7.1-transformers4.6.1-gpu-py36-cu110-ubuntu18.04", "1.7.1", False, "1.0.0"),
        ("pytorch-training:2.0.0-gpu-py310-cu118-ubuntu20.04-sagemaker", "2.0.0", False, "1.8.0"),
        ("pytorch-training:2.8.0-cpu-py312", "2.8.0", True, None),
        ("own:2.0.0-gpu-py310", None, True, None),
    ],
)
def test_the_tag_of_an_image_of_aws_says_what_is_in_it(tag, pytorch, takes_plugin, smddp):
    """This package is not sent where it cannot be installed, whichever way the image was named."""
    uri = f"763104351884.dkr.ecr.us-west-2.amazonaws.com/{tag}"
    image = named_image(uri)
    assert (image.uri, image.pytorch, image.takes_plugin, image.smddp) == (uri, pytorch, takes_plugin, smddp)
    assert named_image(uri.replace("763104351884", "111122223333")).pytorch is None


def test_an_old_image_gets_no_wheel_that_it_cannot_install(tmp_path):
    (tmp_path / "train.py").touch()
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:1.13.1-gpu-py39"
    given = {
        "entry_point": "train.py",
        "source_dir": str(tmp_path),
        "instance_type": "ml.g5.xlarge",
        "region": "us-east-1",
    }
    assert Estimator(**given, image_uri=image).plan().bundle.files == ("train.py",)
