# One environment (.venv), one lock (requirements.lock), a handful of commands. `make help` lists them.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
LESSONS = $(sort $(wildcard notebooks/[0-9][0-9]_*.ipynb))
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 600 --nbval-sanitize-with tests/lessons/nbval_sanitize.cfg
# A process for each core, at most four, of one OpenMP thread each; tests/conftest.py says which tests are in a set,
# which stay together and which come first. The hash seed gives every process the same order of sets.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS := $(shell echo $$(( $(CORES) < 4 ? $(CORES) : 4 )))
TESTS = OMP_NUM_THREADS=1 PYTHONHASHSEED=0 COURSE_TESTS=$(1) $(PY) -m pytest -n $(WORKERS) --no-loadscope-reorder
STORE := $(if $(STORE_DURATIONS),--store-durations)
BOOK := build/book
# Many processes import the package, and each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
# uv where it is there, else pip, which compiles on one core what it installs: then all cores do that afterwards. A package
# may hold files for other Pythons: what cannot be compiled is none of ours.
UV := $(shell command -v uv)
INSTALL = $(if $(UV),uv pip install --quiet --python $(PY) --compile-bytecode,$(PY) -m pip install --quiet --no-compile) -c requirements.lock
COMPILE = @$(if $(UV),,$(PY) -m compileall -qq -j 0 $(VENV)/lib || true)
# JupyterLab's popup that asks whether to fetch news; the command talks a lot even when all is well.
NO_NEWS = $(PY) -m jupyter labextension disable "@jupyterlab/apputils-extension:announcements" \
	--level=sys_prefix > $(VENV)/news.log 2>&1 || { cat $(VENV)/news.log; exit 1; }

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help lab test tests-and-lessons check fast-tests lint style types test-slow test-adapters nightly durations notebooks book lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

lab: $(VENV)/.lab ## open your copies of the lessons in JupyterLab
	@$(VENV)/bin/course-lm lab

# Side by side: the tests need not wait for the checks.
test: $(VENV)/.test ## lint, types, the short tests, and every lesson; DAY=2026-11-26 repeats a day
	@$(MAKE) --no-print-directory --jobs 3 style types tests-and-lessons

tests-and-lessons: $(VENV)/.test
	$(call TESTS,test) $(NBVAL) $(STORE) tests $(LESSONS)

check: $(VENV)/.test ## the fast loop: lint, types, the shortest tests
	@$(MAKE) --no-print-directory --jobs 3 style types fast-tests

fast-tests: $(VENV)/.test
	$(call TESTS,check) -q tests

lint: style types ## ruff, import order, types

style: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports

types: $(VENV)/.test
	$(PY) -m pyrefly check --summary=none

# Some tests wait for processes and browsers. What fails beside others is tried once more, alone; both are printed.
AGAIN = $(call TESTS,slow) -n 0 --last-failed --last-failed-no-failures none tests

test-slow: $(VENV)/.test ## all other tests, of many cases those of the day: killed processes, ranks, a browser, broken packages
	$(call TESTS,slow) $(STORE) tests || $(AGAIN)

test-adapters: $(VENV)/.adapters ## the audit of other people's trainers as they ship: transformers and Lightning
	OMP_NUM_THREADS=1 COURSE_TESTS=nightly $(VENV)/adapters/bin/python -m pytest -p no:cacheprovider -q tests/audit/test_adapters.py

nightly: $(VENV)/.test ## every test and lesson with all its cases: hours
	$(call TESTS,nightly) $(NBVAL) -o faulthandler_timeout=7200 tests $(LESSONS)

durations: $(VENV)/.test ## measure the tests of `make test` and `make test-slow`, store it in tests/durations.json
	@$(MAKE) --no-print-directory tests-and-lessons test-slow STORE_DURATIONS=yes

notebooks: $(VENV)/.test ## run every lesson and store its outputs
	@$(VENV)/bin/course-lm lessons --write

# From nothing each time: Sphinx warns of a page only when it reads it, and a warning, such as one of a link that leads
# nowhere, fails the build.
book: $(VENV)/.test ## build the book, all lessons and the reference, as a site to read in a browser: build/book
	@rm -rf $(BOOK) $(BOOK)-pages && mkdir -p $(BOOK)-pages/read
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet --jobs auto -c docs -d $(BOOK)-pages/parsed $(BOOK)-pages/read $(BOOK)
	@echo "$(BOOK)/index.html"

# Resolves afresh in an empty environment. The `+cpu` of a CPU build of torch is dropped, so that the lock
# fits whatever build of the same version the machine's package index offers. Torch stays at its locked version: raise it in the lock first.
lock: ## write requirements.lock anew from pyproject.toml
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(PYTHON) -m venv "$$tmp/venv" && \
	torch=$$(sed -n 's/^torch==//p' requirements.lock) && \
	"$$tmp/venv/bin/python" -m pip install --quiet -e ".[test]" "torch==$$torch" && \
	"$$tmp/venv/bin/python" -m pip freeze --exclude course-lm > "$$tmp/all" && \
	sed 's/+[a-z0-9.]*$$//' "$$tmp/all" > requirements.lock && \
	wc -l requirements.lock

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	{ echo "course_lm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | tail -n 1)." \
	       "Install one, or name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "'$(PYTHON)' has no venv module; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# The stamps stand for a finished installation; the test environment holds all that the lab needs.
$(VENV)/.lab: $(PY) pyproject.toml requirements.lock
	$(INSTALL) -e ".[lab]"
	$(COMPILE)
	@$(NO_NEWS)
	@touch $@

$(VENV)/.test: $(PY) pyproject.toml requirements.lock
	$(INSTALL) -e ".[test]"
	$(COMPILE)
	@$(NO_NEWS)
	@touch $(VENV)/.lab $@

# Over the test environment, whose packages the .pth file names: no learner and no other test needs these trainers.
TRAINERS := $(addprefix benchmarks/conformance/requirements/,hugging_face.txt lightning.txt)
$(VENV)/.adapters: $(VENV)/.test $(TRAINERS)
	$(PY) -m venv --clear $(VENV)/adapters
	@for site in $(VENV)/adapters/lib/python*/site-packages; do \
	echo ../../../../lib/$$(basename $$(dirname $$site))/site-packages > $$site/below.pth; done
	$(VENV)/adapters/bin/python -m pip install --quiet --no-compile $(addprefix -r ,$(TRAINERS))
	@touch $@
