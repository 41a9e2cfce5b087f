PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8501
LOAD ?= lesson
SESSIONS ?= 30
SECONDS ?= 600
CROWD ?= 0
COUNT ?= 200000
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
APP_READY := $(VENV)/.app-ready
TESTS_READY := $(VENV)/.tests-ready
DOCS_READY := $(VENV)/.docs-ready

.DELETE_ON_ERROR:
.PHONY: run test sweep load fuzz attacks faults mutate lint audit replicas docs gallery screenshot space ready browser clean

run: $(APP_READY)  ## start the app on http://$(HOST):$(PORT)
	@echo "(TRACER_FOLDERS=1 lets its visitors open checkpoints in folders here.)"
	@MALLOC_ARENA_MAX=2 exec $(BIN)/python -m tracer app --address "$(HOST)" --port "$(PORT)"

test: ready  ## run every test
	@$(BIN)/python -m pytest -n 2 --dist worksteal

sweep: ready  ## the tests that try the same on many more models
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m sweep

load: $(TESTS_READY)  ## a class opens the app: LOAD=lesson, cold or photos; SESSIONS, SECONDS
	@$(BIN)/python -m tests.load $(LOAD) --sessions $(SESSIONS) --seconds $(SECONDS)

fuzz: $(TESTS_READY)  ## open $(COUNT) damaged and generated files and addresses, in JOBS processes
	@$(BIN)/python -m tests.fuzz --count $(COUNT) --jobs $(JOBS)

attacks: $(TESTS_READY)  ## attack a hosted server as a stranger would, and look whether others are still served
	@$(BIN)/python -m pytest tests/security/test_attacks.py -s -m "sweep or not sweep"

faults: ready  ## break the app on purpose, in each way that is known, and look what is lost
	@$(BIN)/python -m tests.faults

mutate: $(TESTS_READY)  ## put small mistakes into copies of the program, one at a time: which checks find them?
	@$(BIN)/python -m tracer verify --mutate

lint: $(TESTS_READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: $(TESTS_READY)  ## look up what is pinned, and what it brings, among known vulnerabilities
	@$(BIN)/python tests/hosted/audit.py

replicas: $(TESTS_READY)  ## two replicas of the hosted app behind nginx, on this machine; CROWD=100: so many visitors at once
	@$(BIN)/python -m tests.hosted.replicas --crowd $(CROWD)

docs: $(DOCS_READY)  ## build the documentation as a site, in site/
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

gallery: $(TESTS_READY)  ## derive the textbooks of the zoo and write docs/gallery.md: it takes long
	@$(BIN)/python -m tracer verify --zoo --json | $(BIN)/python -m docs.gallery

screenshot: ready  ## take the picture of the README, docs/overview.webp
	@$(BIN)/python -m docs.screenshot

space: ## put what a public Space needs into an empty folder: FOLDER=…
	@test -n "$(FOLDER)" || { echo "FOLDER= was not given, expected an empty folder: make space FOLDER=../space" >&2; exit 2; }
	@mkdir -p "$(FOLDER)/hosting" && cp hosting/requirements.lock "$(FOLDER)/hosting"
	@cp -R hosting/space/. app.py .streamlit pages tracer "$(FOLDER)"
	@find "$(FOLDER)" -name __pycache__ -type d -prune -exec rm -rf {} +

ready: $(TESTS_READY) browser

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"$(PYTHON) is Python {v[0]}.{v[1]}; expected 3.11 or newer, for instance: make run PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than its requirements once they are installed, so a second run installs nothing.
$(APP_READY): requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(TESTS_READY): tests/requirements.txt $(APP_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

$(DOCS_READY): docs/requirements.txt $(APP_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# A browser on the PATH, else the one that Playwright downloads, else the package manager's.
browser: $(TESTS_READY)
	@if command -v chromium >/dev/null; then exit 0; fi; \
	root=; [ "$$(id -u)" = 0 ] && root=1; \
	if $(BIN)/playwright install chromium && { [ -z "$$root" ] || $(BIN)/playwright install-deps chromium; }; then exit 0; fi; \
	if [ -n "$$root" ] && apt-get update && apt-get install --yes chromium; then exit 0; fi; \
	echo "No browser: install chromium, or the browser tests are skipped." >&2; \
	[ -z "$$CI" ]

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
