# `make demo`: from nothing to a result, recommendations and a report. `make check`: lint, types and unit tests, in less
# than 90 seconds on two cores after `make install`. `make test`: everything, with browsers and real federations.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Modules are compiled when they are first imported: compiling all of them here would take half a minute.
INSTALL := $(PIP) install --quiet --no-compile --constraint constraints.txt

# Tests start many processes. Keep compiled modules for them, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=

EXTRAS := flower,tune,tensorboard,mlflow

.PHONY: install demo check unit test suite lint browser bench evidence notebooks docs snippets package lock clean

# What a user of the package needs, with all extras of the README's commands.
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) pip # whose version knows dependency groups
	$(INSTALL) --editable '.[$(EXTRAS)]' pytest # for support/compile_kernels.py
	@touch $@

# What developers need beside it.
.venv/ready: .venv/core
	$(INSTALL) --group dev
	@touch $@

# Compile the kernels into their cache once. Otherwise every test process would compile them, for more than a minute.
KERNELS := $(wildcard src/fedtaste/kernels/*.py) src/fedtaste/data/sampling.py src/fedtaste/data/synthetic.py
.venv/kernels: .venv/core $(KERNELS)
	@echo "Compiling the kernels, once: one to two minutes"
	@PYTHONPATH=tests $(BIN)/python -m support.compile_kernels
	@touch $@

install: .venv/ready .venv/kernels

demo: .venv/core
	@run=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/fedtaste run --out $$run && \
	$(BIN)/fedtaste recommend $$run --likes "Toy Story" --likes "Star Wars" -n 5 && \
	echo "Report: $$run/report.html" && \
	echo "A page that recommends in your browser and sends nothing: $(BIN)/fedtaste serve $$run"

# Test processes have one thread of torch each. The order of modules is in tests/support/modules.py.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# Side by side: mypy takes one core for half a minute.
check: install
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint unit

unit: install
	$(PYTEST) -n 2 --only unit

# Side by side: chromium and the packages of developers are installed and lint runs while the kernels compile.
test:
	@$(MAKE) --no-print-directory --jobs 3 lint suite

# Three processes for two cores: real federations and browsers spend much of their time waiting.
suite: install browser
	$(PYTEST) -n 3

# The page's tests want Debian's chromium: its headless shell, which takes half of the CPU time, and the whole program for
# one of them. Without either they skip, and say so.
BROWSERS := chromium chromium-headless-shell
browser:
	@for program in $(BROWSERS); do \
	command -v $$program >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	echo "Installing $$program for the tests of the page" && { [ -n "$$updated" ] || apt-get update -qq; } && updated=yes && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$program >/dev/null; } || \
	echo "No $$program, and it cannot be installed here: tests of the page may be skipped."; done

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md docs src
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/fedtaste bench

evidence: .venv/ready notebooks
	$(BIN)/python benchmarks/evidence.py
	for example in examples/*.py; do $(BIN)/python $$example || exit 1; done

# The documentation site, offline, into docs/_build/html; a warning is an error.
docs: .venv/ready
	$(INSTALL) --group docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/python docs/check.py links docs/_build/html
	@echo "The site: docs/_build/html/index.html"

# Every code block of README and docs/ that is not marked with a reason; more than half an hour.
snippets: install
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/check.py blocks

# The sdist and the wheel, checked, and used in empty environments; into dist/.
package: .venv/ready
	$(INSTALL) --group package
	$(BIN)/python benchmarks/package.py

# The lock files in requirements/locked, from pyproject.toml and constraints.txt.
lock: .venv/ready
	$(INSTALL) --group package
	$(BIN)/python benchmarks/lock.py

notebooks: .venv/ready
	$(INSTALL) --group notebooks
	$(BIN)/python benchmarks/notebooks.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
