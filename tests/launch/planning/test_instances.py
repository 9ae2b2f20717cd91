# SPDX-License-Identifier: Apache-2.0
"""The table of instance types."""

import botocore.session

from lightning_sagemaker.launch.planning.images import find_image
from lightning_sagemaker.launch.planning.instances import INSTANCES, find_instance, instance_table_date


def test_every_instance_of_the_service_is_known():
    """The names are botocore's; the facts are EC2's. A newer botocore may know more than the table, none less."""
    session = botocore.session.get_session()
    names = set(session.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum)
    if f"botocore {botocore.__version__};" in instance_table_date():
        assert set(INSTANCES) == names
    assert len(names & set(INSTANCES)) >= 220
    for name in INSTANCES:
        known = INSTANCES[name]
        assert known.cpus >= 2, name
        assert known.memory >= 4, name
        assert known.network > 0, name
        has_gpu = name.startswith(("ml.g", "ml.p"))
        assert has_gpu == bool(known.gpus and known.gpu_memory and not known.gpu.startswith("Trainium")), name
        if has_gpu or not known.gpus:
            uri = find_image("us-east-1", name).uri
            assert ("-gpu-" if has_gpu else "-cpu-") in uri, name
    assert (find_instance("ml.p4d.24xlarge").gpus, find_instance("ml.p4d.24xlarge").efa) == (8, True)
    assert find_instance("ml.c7i.2xlarge").cpus == 8
