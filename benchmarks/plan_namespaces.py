# SPDX-License-Identifier: Apache-2.0
r"""The model of scaling against measurements in network namespaces: hosts of one machine with links of known rates.

    lightning-sagemaker bench scaling sequence-classification --ranks 1x1 2x1 --strategy ddp --workers 0 \
        --network netns:50mbit netns:100mbit netns:200mbit --config tiny.yaml --output runs/namespaces   # as root
    python benchmarks/plan_namespaces.py runs/namespaces

The compute of a micro-batch comes from the case with one rank. The share of the link that gloo reaches and its latency, not
those of nccl over EFA, are fitted to the slowest and the fastest link; the others are predicted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from lightning_sagemaker.bench.results import Measured, Results
from lightning_sagemaker.bench.scaling import Anchor, Cluster, anchored_seconds, predict_step
from lightning_sagemaker.bench.tables import Constants, constants
from lightning_sagemaker.bench.workload import Model, Workload
from lightning_sagemaker.launch.planning.instances import Instance

_GBITS = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    results = Results.load(folder)
    one = next(case for case in results.cases if case.case.ranks == 1)
    several = sorted((case for case in results.cases if case.case.network), key=gbits)
    if len(several) < 3:
        sys.exit("error: fewer than three rates were measured. HINT: see --help.")
    about = json.loads(next(folder.glob("runs/1x1-*/run/**/throughput.json")).read_text())["workload"]
    size = Model("measured", about["parameters"], 2, 128, 2, 512, 1000)  # only the gradients' size is used
    work = Workload(size, about["sequence_length"], one.case.batch, one.case.accumulation, "32-true", workers=1)
    seconds = anchored_seconds(Anchor(cluster(one), one.rate.value, work), constants())
    fitted = fit([several[0], several[-1]], work, seconds)
    print(
        f"one rank: {one.rate.value:.4g} samples/s; share {fitted.network_share:.2f}, latency {fitted.latency_seconds:.4f} s"
    )
    for case in several:
        found = predict_step(work, cluster(case), seconds, "ddp", fitted).rate
        half = "fitted" if case in (several[0], several[-1]) else "predicted"
        low, high = case.rate.low, case.rate.high
        print(
            f"{case.case.network:<16} measured {case.rate.value:.4g} ({low:.4g} to {high:.4g}), model {found:.4g},"
            f" {found / case.rate.value - 1:+.1%}  {half}"
        )


def gbits(case: Measured) -> float:
    """The rate of the hosts' links; loopback counts as 100."""
    found = re.fullmatch(r"netns:([\d.]+)([kmg]bit)", case.case.network or "")
    return float(found[1]) * _GBITS[found[2]] if found else 100.0


def cluster(case: Measured) -> Cluster:
    """The simulated hosts as an instance type of their own."""
    instance = Instance("namespace", 1, 0, 0, "", 0, gbits(case), False)
    return Cluster(instance, case.case.hosts, case.case.processes)


def fit(cases: list[Measured], work: Workload, seconds: float) -> Constants:
    """The share of the link and the latency with the least error, from a grid."""

    def error(found: Constants) -> float:
        rates = [predict_step(work, cluster(case), seconds, "ddp", found).rate / case.rate.value for case in cases]
        return sum((rate - 1) ** 2 for rate in rates)

    grid = product([share / 50 for share in range(10, 51)], [latency / 1000 for latency in range(101)])
    return min((replace(constants(), network_share=a, latency_seconds=b) for a, b in grid), key=error)


if __name__ == "__main__":
    main()
