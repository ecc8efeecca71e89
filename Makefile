# storehooks: `make run` and `make test` do all the set-up they need.
# Only Python 3.11+, pip and make must be there; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.ready-run
DEV    := $(VENV)/.ready-dev
PEERS  := benchmarks/.venv/.ready

# Where it is set, every process we start compiles this code again, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run setup test check soak bench bench-quick reference lock lock-check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN)  ## start everything here: receiver, workers, a sandbox store; Ctrl-C stops it
	@exec $(BIN)/storehooks dev $(ARGS)

setup: $(RUN)  ## prepare .venv only, so that .venv/bin/storehooks works

test: $(DEV)  ## the whole test suite but the slow ones (ARGS="-k name" picks some)
	@$(BIN)/python -m pytest -n $$(($$(nproc) + 1)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(DEV)  ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict receiver workers benchmarks

soak: $(DEV)  ## the slow tests, half an hour of faults and load (ARGS="-k kills" picks some)
	@$(BIN)/python -m pytest -m slow -v $(ARGS)

bench: $(RUN) $(PEERS)  ## all benchmarks beside the peers, under 20 minutes (ARGS="--rows ingest,workers" picks some)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(RUN) $(PEERS)  ## the same in under 3 minutes: shows that it works, concludes less
	@$(BIN)/python -m benchmarks --quick $(ARGS)

reference: $(RUN)  ## write docs/reference.md from the code
	@PYTHONPATH=. $(BIN)/python scripts/reference.py

lock: $(DEV)  ## resolve the dependencies anew into the hash-locked files
	@UV="$(BIN)/uv" scripts/lock

lock-check: $(DEV)  ## every locked wheel exists for x86_64 and aarch64, Python 3.11 to 3.13
	@$(BIN)/python scripts/lock_check.py

clean:  ## remove .venv and caches; data/ stays
	@rm -rf $(VENV) benchmarks/.venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# A stamp is newer than what it was made from. Plugins that somebody installed into .venv stay:
# pip only adds and upgrades, it removes nothing.
$(RUN): requirements/run.txt pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup $(VENV) requirements/run.txt
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@PYTHON="$(PYTHON)" scripts/setup $(VENV) requirements/dev.txt
	@touch $@

$(PEERS): benchmarks/requirements.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup benchmarks/.venv benchmarks/requirements.txt
	@touch $@
