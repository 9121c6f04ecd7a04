# `make demo`: from nothing to a result, recommendations and a report. `make test`: from nothing to a passed suite.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint browser bench evidence notebooks clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/ready
	@run=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/tacit run --out $$run && \
	$(BIN)/tacit recommend $$run --likes "Toy Story" --likes "Star Wars" -n 5 && \
	echo "Report: $$run/report.html" && \
	echo "A page that recommends in your browser and sends nothing: $(BIN)/tacit serve $$run"

# One thread of torch per process: tests run in two processes.
test: .venv/ready lint browser
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadfile

# The page's tests want Debian's chromium. Where it cannot be installed they skip, and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	echo "Installing chromium for the tests of the page" && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	echo "No chromium, and it cannot be installed here: the tests of the page will be skipped."

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/tacit bench

evidence: .venv/ready notebooks
	$(BIN)/python benchmarks/evidence.py

notebooks: .venv/ready
	$(PIP) install --quiet --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/python benchmarks/notebooks.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
