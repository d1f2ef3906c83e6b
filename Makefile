# mrclab: everything starts here. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup compile run-experiment live test slow-test unit-test lint docs slides video site format p4 bench
.PHONY: validation clean distclean
.PHONY: docker-build docker-run-experiment as-root
.NOTPARALLEL: # two installations at once would be in each other's way

# MRCLAB_VENV names another environment: the dev container's is the image's.
VENV := $(or $(MRCLAB_VENV),.venv)
BIN := $(VENV)/bin
# What a run is made of: make run-experiment SCENARIO=link-kill ARGS='--topology wide --trials 8'
SCENARIO ?= link-kill
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Install what Debian/Ubuntu and PyPI must provide (as root); every other target does it by itself

# One call installs all that a target needs, so that what can be done at the same time is: then the other files are there.
SETUP = [[ $@ -nt pyproject.toml && $@ -nt tools/setup.sh ]] || tools/setup.sh $(VENV)
$(VENV)/.ready: pyproject.toml tools/setup.sh
	@$(SETUP)

# What is large and few need: `dev` for the tests, and for the scenario `training` JAX and FRRouting.
TRAINING := $(if $(filter training,$(SCENARIO)),training frr)
$(VENV)/.with-%: pyproject.toml tools/setup.sh
	@$(SETUP) $(sort $* $(if $(filter $*,$(TRAINING)),$(TRAINING)))

# --quick has no FRRouting, and is over before a compiler would be installed and the core compiled: it takes what is there.
QUICK := $(filter --quick,$(ARGS))
$(VENV)/.with-quick: pyproject.toml tools/setup.sh
	@$(SETUP) $(filter training,$(SCENARIO)) quick

# Half a minute after a change of hosts/mrc, else nothing. MRCLAB_PURE=1 does without.
compile: $(VENV)/.ready ## Compile the MRC core (run-experiment, test and bench do it by themselves)
	@$(BIN)/python -m mrclab.hosts.compile || true

# Said before anything is installed: that takes minutes.
as-root:
	@[[ $$(id -u) == 0 ]] || { echo "make: not root: run 'sudo make $(MAKECMDGOALS)' (it makes network namespaces); 'make unit-test' needs no root" >&2; exit 3; }

run-experiment: as-root $(if $(QUICK),$(VENV)/.with-quick,$(TRAINING:%=$(VENV)/.with-%) compile) ## Bring up a fabric, spray, kill links, report the recovery (SCENARIO=, ARGS=)
	@$(BIN)/mrclab run $(SCENARIO) $(ARGS)

# With --run it only shows what a run wrote, which needs no root.
live: $(if $(filter --run --run=%,$(ARGS)),,as-root) compile ## A page on which one cuts links of a running fabric and watches MRC go on (ARGS='--topology tiny')
	@$(BIN)/mrclab live $(ARGS)

test: $(VENV)/.with-dev compile ## Run the tests that this machine can run, but for the slow ones (as root; ARGS= for pytest)
	@tools/test.sh $(BIN)/python -m "not slow" $(ARGS)

slow-test: $(VENV)/.with-dev compile ## Run the slow tests: whole experiments, long searches, breaks that tests must find (ARGS= for pytest)
	@tools/test.sh $(BIN)/python -m slow $(ARGS)

unit-test: $(VENV)/.with-dev compile ## Run the quick tests that need no root, on all CPUs (ARGS= for pytest)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --kernel without -n logical --dist worksteal -m "not slow and not root" $(ARGS)

lint: $(VENV)/.with-dev ## Check style, types and the order of the rooms
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

docs: $(VENV)/.with-docs ## Build the documentation as a site in site/ (a dead link is an error)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

slides: $(VENV)/.with-docs ## Build the labs' slides, one HTML file each, in build/slides
	@$(BIN)/python tools/slides.py build/slides

video: $(VENV)/.with-docs ## Make the captioned video of a minute in build/video (needs ffmpeg, Chromium and Playwright)
	@$(BIN)/python tools/video.py build/video

site: docs ## That, and the pages that simulate in the browser (site/play, for any file server)
	@$(BIN)/python tools/play_site.py site/play && $(BIN)/python tools/lab_site.py site/play

format: $(VENV)/.with-dev ## Format the code
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# The compiler's image, as the Dockerfile pins it.
P4C_IMAGE = $(shell sed -n 's/^ARG P4C_IMAGE=//p' Dockerfile)
p4: ## Compile p4src with the p4c-bm2-ss on PATH, or else with that of p4lang's image (needs Docker)
	@if command -v p4c-bm2-ss >/dev/null; then python3 -m mrclab.p4src.compile; \
	elif command -v docker >/dev/null; then \
		docker run --rm --network none --user "$$(id -u):$$(id -g)" -v "$$PWD:/src" -w /src $(P4C_IMAGE) python3 -m mrclab.p4src.compile; \
	else echo "make p4: no p4c-bm2-ss on PATH and no docker: install one of them" >&2; exit 3; fi

bench: as-root $(VENV)/.with-dev compile ## Run the benchmarks, shortened to some ten minutes, and print their tables (ARGS='--full', ARGS=NAME)
	@$(BIN)/python -m benchmarks $(ARGS)

COMPOSE ?= docker compose
# In Docker the results belong to whoever types this.
DOCKER_ENV = LOCAL_UID=$$(id -u) LOCAL_GID=$$(id -g) SCENARIO='$(SCENARIO)' ARGS='$(ARGS)'

docker-build: ## Build the image with BMv2 in it (needs Docker and nothing else)
	@$(COMPOSE) build lab

docker-run-experiment: ## run-experiment in that image (SCENARIO=, ARGS=, MRCLAB_TARGET=)
	@mkdir -p results && $(DOCKER_ENV) $(COMPOSE) run --rm lab

# HTSIM=PATH: your own htsim_uec, for the side-by-side table.
validation: $(VENV)/.with-dev compile ## Compare the simulator with theory, and with your htsim_uec (HTSIM=PATH, ARGS=)
	@$(BIN)/python benchmarks/validation.py $(if $(HTSIM),--htsim '$(HTSIM)') $(ARGS)

clean: as-root $(VENV)/.ready ## Remove whatever a crashed run left behind
	@$(BIN)/mrclab clean

distclean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
