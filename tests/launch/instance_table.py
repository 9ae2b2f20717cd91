# SPDX-License-Identifier: Apache-2.0
"""Makes ``launch/planning/data/instances.json``: ``python -m tests.launch.instance_table``.

Names are those of botocore's CreateTrainingJob; facts are EC2's own (DescribeInstanceTypes, a copy of which moto brings).
"""

import gzip
import json
from datetime import date
from pathlib import Path

import botocore
import botocore.session
import moto

from lightning_sagemaker.launch.planning.instances import _facts
from tests.conftest import ROOT

TABLE = ROOT / "src" / "lightning_sagemaker" / "launch" / "planning" / "data" / "instances.json"

RETIRED = {  # EC2 lists them no more; AWS's pages, November 2026
    "p2.xlarge": [4, 61, 1, "K80", 12, 10, False],
    "p2.8xlarge": [32, 488, 8, "K80", 12, 10, False],
    "p2.16xlarge": [64, 732, 16, "K80", 12, 25, False],
    "p3.2xlarge": [8, 61, 1, "V100", 16, 10, False],
    "p3.8xlarge": [32, 244, 4, "V100", 16, 10, False],
    "p3.16xlarge": [64, 488, 8, "V100", 16, 25, False],
    "p6e-gb200.36xlarge": [144, 960, 4, "GB200", 185, 1600, True],
}


def main() -> None:
    known = json.loads(
        gzip.decompress(Path(moto.__file__).with_name("ec2").joinpath("resources/instance_types.json.gz").read_bytes())
    )
    names = botocore.session.get_session().get_service_model("sagemaker").shape_for("TrainingInstanceType").enum
    rows = {name: RETIRED.get(name[3:]) or _facts(known[name[3:]]) for name in sorted(names)}
    source = f"names: botocore {botocore.__version__}; facts: EC2's DescribeInstanceTypes in moto {moto.__version__}"
    head = json.dumps({"date": date.today().isoformat(), "source": source})[:-1]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in rows.items())
    TABLE.write_text(f'{head}, "instances": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
