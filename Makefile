# storehooks: `make run` and `make test` do all the set-up they need.
# Only Python 3.11+, pip and make must be there; everything else goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.ready-run
DEV    := $(VENV)/.ready-dev
DOCS   := $(VENV)/.ready-docs
PEERS  := benchmarks/.venv/.ready
# The variable hides an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# With this variable set, every process compiles the code again, and the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run setup test test-full mutants check soak drill bench bench-quick docs reference release audit lock lock-check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN)  ## start everything here: receiver, workers, a sandbox store; Ctrl-C stops it
	@exec $(BIN)/storehooks dev $(ARGS)

setup: $(RUN)  ## prepare .venv only; then .venv/bin/storehooks works

test: $(DEV)  ## the test suite; needs nothing but Python (ARGS="-n 0 -k name" picks some)
	@$(BIN)/python -m pytest -n $$(($$(nproc) * 2)) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

# pytest ends with 5 if ARGS pick no test of a part: they must pick some of one.
test-full: $(DEV) $(DOCS)  ## the tests that measure time, and those that need other programs: faketime, strace, openssl, postgresql, node, slowhttptest, chromium, promtool, nginx, caddy, haproxy, nftables, systemd; skipped where one is missing
	@$(BIN)/python -m pytest -m "full and not slow and not timed" -n 2 --dist loadfile $(ARGS); full=$$?; \
	[ $$full = 0 ] || [ $$full = $(if $(ARGS),5,none) ] || exit $$full; \
	$(BIN)/python -m pytest -m "timed and not slow" $(ARGS); timed=$$?; \
	[ $$timed = 0 ] || { [ $$timed = $(if $(ARGS),5,none) ] && [ $$full = 0 ]; }

.PHONY: restore-drill
restore-drill: $(DEV)  ## back up an installation, lose Redis, restore, and print what became of each delivery: docs/backup.md
	@$(BIN)/python -m pytest -m full -q tests/faults/test_restore_drill.py $(ARGS)

mutants: $(DEV)  ## 100 small changes of verifying and reading: at least 95 must fail a test of the contract (ARGS="--seed 2")
	@$(BIN)/python scripts/mutants.py $(ARGS)

check: $(DEV)  ## lint and types: ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict receiver storehooks workers benchmarks

soak: $(DEV)  ## the slow tests: one to two hours of faults and load (ARGS="-k kills" picks some)
	@$(BIN)/python -m pytest -m slow -v $(ARGS)

drill: $(DEV)  ## two hosts under load, and one fault after another: a table of what each costs, in 10 minutes on two idle cores, under 20 on busy ones (ARGS="--rows kill,HUP" picks some)
	@$(BIN)/python -m tests.drill $(ARGS)

bench: $(RUN) $(PEERS)  ## all benchmarks against the peers, about 20 minutes (ARGS="--rows ingest,workers" picks some)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-quick: $(RUN) $(PEERS)  ## the same in under 3 minutes: a smoke test, its figures are less certain
	@$(BIN)/python -m benchmarks --quick $(ARGS)

docs: $(DOCS)  ## build the pages into site/, with search; broken links are errors (ARGS="--site-dir PATH")
	@$(MKDOCS) build --strict $(ARGS)
	@echo "site/ is ready: python3 -m http.server --directory site --bind 127.0.0.1"

reference: $(RUN)  ## generate docs/reference.md, docs/topics.md, the client's types, the list of files in docs/architecture.md and the files in docs/how-to/deploy.md
	@PYTHONPATH=. $(BIN)/python scripts/reference.py
	@PYTHONPATH=. $(BIN)/python scripts/topics_page.py
	@PYTHONPATH=. $(BIN)/python scripts/client_stub.py
	@PYTHONPATH=. $(BIN)/python scripts/file_index.py
	@PYTHONPATH=. $(BIN)/python scripts/deploy_page.py

release: $(DEV)  ## wheel, sdist, SBOM and checksums of the commit that is checked out, into dist/; twice the same bytes
	@PYTHONPATH=. $(BIN)/python -m scripts.release

audit: $(DEV)  ## licences of all locked packages, and known vulnerabilities where an advisory service can be reached
	@PYTHONPATH=. $(BIN)/python -m scripts.audit

lock: $(DEV)  ## update the hash-locked requirements
	@UV="$(BIN)/uv" scripts/lock

lock-check: $(DEV)  ## every locked wheel exists for x86_64 and aarch64, Python 3.11 to 3.13
	@$(BIN)/python scripts/lock_check.py

clean:  ## remove .venv and caches, but not data/
	@rm -rf $(VENV) benchmarks/.venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Each stamp is newer than the files it depends on. pip only adds and upgrades, so plugins installed into .venv by
# hand stay there.
$(RUN): requirements/run.txt pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup $(VENV) requirements/run.txt
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@PYTHON="$(PYTHON)" scripts/setup $(VENV) requirements/dev.txt
	@touch $@

$(DOCS): $(RUN) requirements/docs.txt
	@PYTHON="$(PYTHON)" scripts/setup $(VENV) requirements/docs.txt
	@touch $@

$(PEERS): benchmarks/requirements.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup benchmarks/.venv benchmarks/requirements.txt
	@touch $@
