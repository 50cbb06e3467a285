# Everything that people and machines run here. `make` alone lists it.
PYTHON ?= $(or $(shell command -v python3.11 2>/dev/null),python3)
UV     := $(or $(shell command -v uv 2>/dev/null),.venv-uv/bin/uv)
BIN    := .venv/bin
DIR    ?= demo
COVERING := tests/core

# What the system trusts, such as a company's proxy, uv trusts too.
export UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/ca-certificates.crt),true,false)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-covered test-others test-fast test-nightly model mutants lint docs site pictures release bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

install: .venv/.installed ## make .venv with everything that uv.lock names

demo: install ## maintain a lakehouse made on the spot in DIR (demo); ONCE=1 ends after one pass
	$(BIN)/icewright demo --dir $(DIR) $(if $(ONCE),--once)

test: test-covered test-others ## all tests but the nightly ones, and the branches of the core that its own tests cover

test-covered: install # in one process, as pytest-cov leaves no test out in those of xdist
	$(BIN)/pytest --numprocesses=0 $(COVERING) --cov

test-others: install # a third process has the time that two wait for servers and JVMs
	$(BIN)/pytest --numprocesses=3 $(COVERING:%=--ignore=%)

test-fast: install ## the tests that need neither Spark nor a server, nor seconds
	$(BIN)/pytest -m "not spark and not external and not slow"

test-nightly: install ## all tests, also those that take long and the demo's own tables
	ICEWRIGHT_NIGHTLY=1 $(BIN)/pytest

model: install ## play 10,000 steps of writers, strangers, clones, crashes and Icewright against a plain model
	ICEWRIGHT_MODEL_STEPS=10000 $(BIN)/pytest -n 0 -s tests/model

mutants: install ## change the code that decides deletions and commits: does a test notice? MODULES=... of it
	$(BIN)/python -m tools.mutants $(MODULES)

lint: install ## style, types, walls and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.prose

docs: install ## write the reference pages, and the types of the client's documents, anew from the code
	$(BIN)/python -m tools.reference docs/reference
	$(BIN)/python -m tools.client_types

site: install ## build the documentation into build/site
	$(BIN)/mkdocs build --strict

pictures: install ## take a picture of every page of the demo's lakehouse into build/pictures; wants Chromium
	$(BIN)/python -m tools.pictures

release: install ## make wheel, source distribution, hashes and a list of all packages (CycloneDX) in dist
	rm -rf dist
	$(UV) build
	$(UV) export --frozen --no-dev --all-extras --format cyclonedx1.5 --quiet --output-file dist/sbom.cdx.json
	cd dist && sha256sum -- *.whl *.tar.gz *.json > SHA256SUMS

bench: install ## compare with peers, each measured in the same run
	@for script in $(sort $(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

.venv/.installed: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --python $(PYTHON)
	@touch $@

.venv-uv/bin/uv: # a uv of our own, where the machine has none
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 \
	  '$(PYTHON) cannot make virtual environments: install uv or, on Debian, the package python3-venv'; exit 1; }
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/pip install --quiet uv
