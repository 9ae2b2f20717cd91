# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker plan``: the model of scaling against published results, and what the command says."""

import json
import math
import random
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import plan_validation as validation
from lightning_sagemaker import cli
from lightning_sagemaker.bench.cases import Case
from lightning_sagemaker.bench.layouts import GIB, Layout, judge
from lightning_sagemaker.bench.measure import Round
from lightning_sagemaker.bench.results import Measured, Results
from lightning_sagemaker.bench.runs import Policy, interrupted_seconds
from lightning_sagemaker.bench.scaling import Anchor, Cluster, anchored_seconds, predict_step, scaling_efficiency
from lightning_sagemaker.bench.tables import accelerator, constants, read
from lightning_sagemaker.bench.workload import Model, Workload
from lightning_sagemaker.launch.planning.instances import INSTANCES, find_instance

P4D = find_instance("ml.p4d.24xlarge")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["plan", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_half_of_the_published_results_predict_the_other_half():
    rows = validation.predict_all(validation.read_rows(), constants())
    assert [row.number % 2 == 1 for row in rows] == [row.is_fitted for row in rows]
    assert not any(row.is_anchor for row in rows if not row.is_fitted)
    model, linear = (validation.errors(rows, name) for name in ("model", "linear"))
    assert len(model) == 20
    assert statistics.median(model) < 0.10
    assert statistics.median(linear) > 2 * statistics.median(model)
    same = [abs(row.error) for row in rows if not row.is_fitted and row.is_same_instance]
    other = [abs(row.error) for row in rows if not row.is_fitted and not row.is_same_instance]
    assert validation.ninetieth(same) == pytest.approx(constants().anchored_error, abs=2e-3)
    assert validation.ninetieth(other) == pytest.approx(constants().unanchored_error, abs=2e-3)


def test_predicted_rows_have_no_part_in_the_fit():
    rows = validation.read_rows()
    changed = [row | {"value": row["value"] * 3} if number % 2 == 0 else row for number, row in enumerate(rows, 1)]
    point = replace(constants(), overlap=0.5)
    for made in (constants(), point):
        before, after = (
            [row.predicted for row in validation.predict_all(given, made) if row.is_fitted] for given in (rows, changed)
        )
        assert before == after
    # and what is predicted does not come from its own value
    assert [row.predicted for row in validation.predict_all(rows, point)] == [
        row.predicted for row in validation.predict_all(changed, point)
    ]


@pytest.mark.slow
def test_the_constants_are_those_of_the_fit():
    fitted = validation.fit(validation.read_rows())
    for name in validation.START:
        assert getattr(fitted, name) == pytest.approx(getattr(constants(), name), rel=1e-3)


def test_published_rows_say_where_they_are_from():
    for row in validation.read_rows():
        assert row["source"]
        assert row["instance"] in INSTANCES
    assert len({row["source"] for row in validation.read_rows()}) >= 6


@settings(max_examples=60, deadline=None)
@given(
    hosts=st.sampled_from([1, 2, 8, 64, 1024, 4000]),
    rate=st.floats(1, 1e6),
    batch=st.integers(1, 64),
    accumulation=st.integers(1, 16),
    instance=st.sampled_from(["ml.p4d.24xlarge", "ml.g5.12xlarge", "ml.p3.2xlarge", "ml.c5.xlarge"]),
)
def test_an_anchor_is_reproduced_unless_the_network_alone_is_slower(hosts, rate, batch, accumulation, instance):
    work = Workload(Model.named("bert-base"), batch=batch, accumulation=accumulation)
    cluster = Cluster(find_instance(instance), hosts)
    seconds = anchored_seconds(Anchor(cluster, rate, work), constants())
    found = predict_step(work, cluster, seconds, "ddp", constants()).rate
    if predict_step(work, cluster, 1e-6, "ddp", constants()).rate > rate:
        assert found == pytest.approx(rate, rel=1e-3)
    else:
        assert found <= rate * 1.001


@pytest.mark.parametrize("strategy", ["ddp", "smddp"])
@pytest.mark.parametrize("name", ["albert-base", "bert-large"])
def test_efficiency_falls_with_hosts_and_gains_by_accumulation(strategy, name):
    def at(hosts: int, **changes: int) -> float:
        work = replace(Workload(Model.named(name)), **changes)
        return scaling_efficiency(work, Cluster(P4D, hosts), 0.1, strategy, constants())

    found = [at(hosts) for hosts in (1, 2, 4, 8, 16, 256, 4096)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1
    assert 0 < found[-1] < 1
    assert at(8, accumulation=8) > at(8)


def test_loading_limits_where_each_rank_reads_everything():
    work = Workload(Model.named("albert-base"), length=512, workers=0, reads_all=True)
    efficiency = [scaling_efficiency(work, Cluster(P4D, n), 0.06, "smddp", constants()) for n in (2, 16)]
    with_workers = scaling_efficiency(replace(work, workers=12), Cluster(P4D, 16), 0.06, "smddp", constants())
    assert efficiency[1] < 0.6 * efficiency[0]
    assert with_workers > 1.3 * efficiency[1]


@pytest.mark.parametrize("parameters", [1e8, 2e10], ids=["saved within the notice", "work is lost"])
@pytest.mark.parametrize("per_second", [1e-5, 5e-4])
def test_interrupted_runs_take_as_long_as_simulated_ones(parameters, per_second):
    policy, work, seed = Policy(parameters), 36000.0, random.Random(0)
    simulated = statistics.fmean(_simulated(work, per_second, policy, seed) for _ in range(1500))
    assert interrupted_seconds(work, per_second, policy) == pytest.approx(simulated, rel=0.02)


def _simulated(work: float, per_second: float, policy: Policy, seed: random.Random) -> float:
    taken = done = 0.0
    interval = policy.checkpoint_minutes * 60
    while True:
        until = seed.expovariate(per_second)
        if until >= work - done:
            return taken + work - done
        taken, done = taken + until, done + until
        if policy.lost_seconds:
            done = math.floor(done / interval + 1e-9) * interval
        while (until := seed.expovariate(per_second)) < policy.startup:
            taken += until
        taken += policy.startup


def test_operations_are_those_of_the_papers():
    for name, length, tolerance in (("gpt2-xl", 1024, 0.15), ("llama-2-7b", 4096, 0.20), ("bert-large", 512, 0.25)):
        model = Model.named(name)  # 6 x parameters x tokens, without attention's products, embeddings counted
        assert model.flops(length) == pytest.approx(6 * model.parameters * length, rel=tolerance)
    for name in read("models")["models"]:
        model = Model.named(name)
        stored = 1 if model.shared else model.layers
        # vocabulary, layers; positions, biases and llama's narrow keys are left out
        assert stored * model.layer_parameters + model.vocabulary * 128 < 1.2 * model.parameters


def test_memory_says_which_layout_fits():
    work = Workload(Model.named("llama-2-7b"), length=2048, batch=1, accumulation=8)
    cluster = Cluster(P4D, 1)
    found = {
        str(layout): judge(work, cluster, layout, 1.0, constants())
        for layout in (Layout("ddp", replicas=8), Layout("fsdp", replicas=8), Layout("smp", 2, 4, 1))
    }
    assert not found["ddp"].fits
    assert found["ddp"].memory > 16 * 6.7e9
    assert found["fsdp"].fits
    assert found["smp 2 x 4 x 1"].fits
    recomputed = judge(replace(work, recompute=True), cluster, Layout("fsdp", replicas=8), 1.0, constants())
    assert recomputed.memory < found["fsdp"].memory - 5 * GIB


def test_each_gpu_of_the_table_is_one_that_instances_have():
    gpus = {one.gpu for one in INSTANCES.values()}
    assert set(read("hardware")["accelerators"]) <= gpus
    assert all(accelerator(one) is None for one in INSTANCES.values() if not one.gpus)


def test_the_table_and_the_cheapest(capsys):
    asked = ["albert-mlm", "--instances", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "--hosts", "1", "8", "2000"]
    code, out, _ = run(capsys, *asked, "--measured", "ml.p4d.24xlarge=1900", "--target-hours", "24")
    assert code == 0
    assert "The cheapest within 24 hours: 8 x ml.p4d.24xlarge, smddp" in out
    assert "* more than" in out
    code, out, _ = run(capsys, *asked, "--json", "--budget", "3000")
    found = json.loads(out)
    assert code == 0
    assert len(found["offers"]) == 6
    assert found["chosen"]["usd"] <= 3000
    fastest = min(one["hours"] for one in found["offers"] if one["usd"] <= 3000)
    assert found["chosen"]["hours"] == fastest
    for one in found["offers"]:
        low, high = one["samples_per_second_interval"]
        assert low < one["samples_per_second"] < high
        assert one["hours"] < one["spot_hours"][2]
    code, out, _ = run(capsys, *asked, "--budget", "5")
    assert code == 1
    assert "None of these stays within $5" in out


def test_a_measurement_is_given_back_on_its_own_instance(capsys):
    _, out, _ = run(
        capsys, "bert-base", "--instances", "ml.g5.xlarge", "--hosts", "1", "--measured", "ml.g5.xlarge=123.4", "--json"
    )
    assert json.loads(out)["offers"][0]["samples_per_second"] == pytest.approx(123.4, rel=1e-3)


def test_a_result_of_bench_is_a_measurement(capsys, tmp_path):
    def asked(instance: str | None) -> tuple[int, str, str]:
        rounds = (Round(tuple(100.0 + number % 3 for number in range(20)), 0, 1.0, 2.0),)
        case = Measured(Case(hosts=2, processes=4), rounds, "python train.py")
        Results("throughput", "bert-qa", 100, 1, {"instance_type": instance, "cores": 8}, (case,)).save(tmp_path)
        asked = ["--instances", "ml.g5.12xlarge", "--hosts", "2", "--json"]
        return run(capsys, "bert-qa", "--measured", str(tmp_path / "results.json"), *asked)

    code, out, _ = asked("ml.g5.12xlarge")
    assert code == 0
    assert json.loads(out)["offers"][0]["samples_per_second"] == pytest.approx(101, rel=1e-3)
    code, _, err = asked(None)
    assert code == 2
    assert "outside a training job" in err


def test_the_interval_is_narrow_only_where_it_was_compared(capsys):
    def widths(*arguments: str) -> dict[tuple[str, int], float]:
        _, out, _ = run(capsys, "bert-base", "--json", *arguments)
        return {
            (one["instance"], one["hosts"]): round(
                one["samples_per_second_interval"][1] / one["samples_per_second"] - 1, 3
            )
            for one in json.loads(out)["offers"]
        }

    narrow, wide = constants().anchored_error, constants().unanchored_error
    hosts = ("--hosts", "1", "8", "64", "--instances")
    found = widths(*hosts, "ml.p4d.24xlarge", "ml.p5.48xlarge", "--measured", "ml.p4d.24xlarge=9000")
    assert [found["ml.p4d.24xlarge", number] for number in (1, 8, 64)] == [narrow, narrow, wide]
    assert found["ml.p5.48xlarge", 1] == wide
    found = widths(*hosts, "ml.p5.48xlarge", "--measured", "ml.p5.48xlarge*8=90000")
    assert [found["ml.p5.48xlarge", number] for number in (1, 8, 64)] == [wide, narrow, wide]
    assert set(widths(*hosts, "ml.p4d.24xlarge").values()) == {wide}


def test_layouts_for_a_model_that_no_gpu_holds(capsys):
    asked = ["llama-2-7b", "--sequence-length", "2048", "--batch-size", "1", "--layouts", "--instances"]
    code, out, _ = run(capsys, *asked, "ml.p4d.24xlarge", "--hosts", "2")
    assert code == 0
    assert "smp" in out
    assert "fsdp" in out
    code, out, _ = run(capsys, *asked, "ml.g5.xlarge", "--hosts", "1")
    assert code == 1
    assert "nothing fits" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert-lage"], "did you mean 'bert-large'?"),
        ([], "no model was given"),
        (["bert-base", "--layers", "3"], "a description were given"),
        (["bert-base", "--instances", "ml.p4.24xlarge"], "did you mean 'ml.p4d.24xlarge'?"),
        (["bert-base", "--instances", "ml.trn1.32xlarge"], "Neuron"),
        (["bert-base", "--instances", "ml.c5.xlarge"], "measure it"),
        (["bert-base", "--measured", "ml.p4d.24xlarge=-3"], "must be more than 0"),
        (["bert-base", "--measured", "ml.p4d.24xlarge=nan"], "must be more than 0"),
        (["bert-base", "--measured", "ml.p4d.24xlarge*x=3"], "write --measured"),
        (["bert-base", "--measured", "/nowhere.json"], "neither TYPE=SAMPLES_PER_SECOND nor a result of bench"),
        (["bert-base", "--strategy", "dpp"], "did you mean 'ddp'?"),
        (["bert-base", "--precision", "bf16"], "did you mean 'bf16-"),
        (["bert-base", "--strategy", "smddp", "--instances", "ml.g5.xlarge"], "cannot run on"),
        (["bert-base", "--target-hours", "3"], "--samples"),
        (["bert-base", "--num-workers", "-1"], "at least 0"),
    ],
)
def test_bad_input_is_one_sentence(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert "HINT:" in err


def test_a_plan_needs_neither_torch_nor_lightning():
    code = "import sys; from lightning_sagemaker import cli; cli.main(['plan', 'bert-base']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert not {"torch", "lightning", "numpy", "sagemaker"} & set(done.stdout.splitlines()[-1].split()), done.stderr


def test_the_page_has_the_figures_of_the_validation():
    """docs/performance.md says what benchmarks/plan_validation.py prints."""
    text = (validation.PUBLISHED.parents[1] / "docs" / "performance.md").read_text()
    rows = validation.predict_all(validation.read_rows(), constants())
    for row in rows:
        if not row.is_fitted:
            shown = f"| {row.number} | {row.facts['series']} | {row.facts['hosts']} x {row.facts['instance'][3:]} |"
            assert f"{shown} {row.facts['value']:.4g} | {row.predicted:.4g} | {row.error:+.1%} |" in text
    for name in ("model", "linear"):
        found = validation.errors(rows, name)
        assert f"{statistics.median(found):.1%}" in text
        assert f"{max(found):.1%}" in text
