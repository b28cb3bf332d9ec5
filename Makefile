# Every target sets itself up: .venv is made once, and again when pyproject.toml or the constraints change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TRL_VENV := .venv-trl
TRL_READY := $(TRL_VENV)/ready
GENRL_VENV := .venv-genrl
GENRL_READY := $(GENRL_VENV)/ready
SLOW_READY := $(VENV)/slow
CONSTRAINTS := constraints/libraries.txt constraints/torch.txt
PIP := pip install --disable-pip-version-check --root-user-action=ignore --use-pep517 --progress-bar off
SHOWN := awk '/^Collecting/ {sub(/[^A-Za-z0-9._-].*/, \"\", \$$2); print \"  fetching \" \$$2; fflush()} /^Installing/ {print \"  installing all of them, a minute or two\"; fflush()}'

.PHONY: help setup demo test test-slow test-alone hostile check format lock bench bench-check soak studies tidy reliability pictures notebooks readme release-check tour

help: ## Print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv with everything in it
	@echo "Ready. Next: make demo, or 'source $(BIN)/activate' for the rl-swarm commands of the README"

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed, $(PYTHON) is older: set PYTHON=python3.12 or the like" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "Setting up $(VENV); the first time takes a few minutes and 2 GB of disk"
	@bash -o pipefail -c "$(BIN)/python -m $(PIP) $(addprefix -c ,$(CONSTRAINTS)) -e '.[dev]' | $(SHOWN)"
	@touch $@

demo: $(READY) ## Train four small models together on this machine, shown live
	$(BIN)/rl-swarm demo

# One thread a process: more threads than cores make everyone slow.
test: export OMP_NUM_THREADS = 1
test: $(READY) ## Run the tests that need no more than two cores and a few minutes
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-slow: export OMP_NUM_THREADS = 1
test-slow: $(SLOW_READY) ## Run also the tests that take minutes or need Debian packages (up to an hour)
	HYPOTHESIS_PROFILE=searching $(BIN)/python -m pytest -q -m 'not alone' -n auto --dist worksteal --durations 15

test-alone: $(READY) ## Run the tests that need the machine for themselves: five demos, and workers that share its cores
	$(BIN)/python -m pytest -q -s -m alone

# What only slow tests need. Trackio without its dependencies: it asks for pillow before 13, which it does not import here.
$(SLOW_READY): $(READY) constraints/slow.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS) constraints/slow.txt) -e '.[dev-slow]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints/slow.txt --no-deps trackio
	@touch $@

hostile: $(READY) ## Score 500 hostile answers for each reasoning-gym task under the helper's limits; goes on where it was stopped
	$(BIN)/python -m checks.hostile_run

check: $(READY) ## Format, lint, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: $(READY) ## Format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) $(TRL_READY) $(GENRL_READY) ## Measure against TRL, GenRL and alone, and write docs/performance.md and docs/scale.md (about half an hour, on an idle machine)
	$(BIN)/python -m benchmarks.exchange
	$(BIN)/python -m benchmarks.crowd
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.overlap
	$(BIN)/python -m benchmarks.workers
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.report

bench-check: $(READY) ## Fail where a ratio measured by make bench is worse than promised
	$(BIN)/python -m benchmarks.report --check

$(TRL_READY): pyproject.toml $(CONSTRAINTS) constraints/trl.txt
	@$(TRL_VENV)/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf $(TRL_VENV); $(PYTHON) -m venv $(TRL_VENV); }
	@$(TRL_VENV)/bin/python -m pip install -q --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS) constraints/trl.txt) -e . trl
	@touch $@

# GenRL without its dependencies: it asks for hivemind, which its trainer does not import, and for transformers before 5.
$(GENRL_READY): constraints/torch.txt constraints/genrl.txt
	@$(GENRL_VENV)/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf $(GENRL_VENV); $(PYTHON) -m venv $(GENRL_VENV); }
	@$(GENRL_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints/torch.txt -c constraints/genrl.txt torch transformers datasets tensorboard wandb
	@$(GENRL_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps -c constraints/genrl.txt gensyn-genrl
	@touch $@

soak: $(READY) ## Run 16 stand-in workers for 15 minutes; fail if memory, open files or operations a round grow
	$(BIN)/python -m checks.soak

# Cells that are finished are not run again, and an interrupted one goes on: stop with Ctrl-C, start again with the same command.
studies: $(READY) ## Run the studies of docs/results.md, or go on with them (hours, on an idle machine)
	$(BIN)/rl-swarm reproduce --ablations all --output docs/nano-table
	for preset in longer alone knowledge quarter sizes; do $(BIN)/rl-swarm reproduce --preset $$preset --output docs/$$preset || exit 1; done

tidy: $(READY) ## Run 2,000 rounds of 8 stand-in workers with retention; fail if rollouts or the time of a round grow
	$(BIN)/python -m checks.tidy

reliability: $(READY) ## Run the simulated faults and write docs/reliability.md
	$(BIN)/python -m checks.reliability

pictures: $(READY) ## Run a demo, and write the pictures of the README to docs/pictures
	$(BIN)/python -m checks.pictures

notebooks: $(READY) ## Run every notebook on this machine and keep the outputs (about half an hour)
	$(BIN)/python -m checks.notebooks run

readme: $(READY) ## Write the settings and the measured result into README.md and docs/settings.md
	$(BIN)/python -m tests.test_readme

release-check: $(READY) ## Build the wheel, install it in a clean environment, and run the demo there for five rounds
	$(BIN)/python -m checks.release

tour: $(READY) ## Draw the folders and what they import into docs/tour.md
	$(BIN)/python -m tests.support.imports

lock: $(READY) ## Write the versions in use to constraints/libraries.txt
	$(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(torch|numpy|nvidia|triton|cuda)[-_=a-z0-9]*==' > constraints/libraries.txt
