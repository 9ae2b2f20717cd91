# SPDX-License-Identifier: Apache-2.0
"""The requests that jobs must become: ``python -m tests.launch.golden`` writes ``tests/data/requests.json`` anew."""

import json
import re
import tempfile
from pathlib import Path

from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.request.create import create_request, default_bucket
from tests.conftest import ROOT
from tests.launch.seeds import CASES, make

FILE = ROOT / "tests" / "data" / "requests.json"
ACCOUNT = "123456789012"


def expected(case: str, folder: Path, name: str | None = None) -> dict:
    """The request as this package makes it without the SDK."""
    estimator, inputs = make(case, folder)
    config = estimator.config.changed(region="us-east-1")
    plan = make_plan(config if inputs is None else config.changed(inputs=inputs), suffix="test")
    return create_request(plan, name or f"{plan.base_name}-20260101000000", default_bucket("us-east-1", ACCOUNT))


def plain(request: dict) -> dict:
    """Without what changes from day to day: the time in names, the digest of the source, the metrics' expressions."""
    text = json.dumps(request)
    text = re.sub(r"-20\d{12}\b", "-TIME", text)
    text = re.sub(r'-([0-9a-f]{4}|test)(?=-TIME|/|")', "-test", text)
    text = re.sub(r"source-[0-9a-f]{16}", "source-DIGEST", text)
    result = json.loads(text)
    definitions = result["AlgorithmSpecification"].get("MetricDefinitions", [])
    result["AlgorithmSpecification"]["MetricDefinitions"] = [one["Name"] for one in definitions]
    return result


def main() -> None:
    requests = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            requests[case] = plain(expected(case, Path(folder)))
    FILE.write_text(json.dumps(requests, indent=1) + "\n")


if __name__ == "__main__":
    main()
