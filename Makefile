# make demo · make test · make test-peer · make lint: each sets up .venv by itself. Nothing but Python ≥ 3.11, make and git
# is needed.
#
#   PYTHON=python3.12                                      the Python to use
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu       where to take torch from; this one holds the small CPU build

PYTHON ?= python3
TORCH_INDEX ?=
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
BIN := .venv/bin

.PHONY: demo test test-peer lint format clean

demo: .venv/installed
	$(BIN)/reluformer train --config configuration/recipes/demo.yaml --overwrite

test: .venv/installed
	$(BIN)/python -m pytest

# The library's own tests of its models, from its source package; PEER_TRANSFORMERS_TESTS=… adds those of generation.
test-peer: .venv/installed
	$(BIN)/python tests/peer/library_tests.py
	$(BIN)/python -m pytest tests/peer -rs

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info

# torch alone first: its index may hold nothing else.
.venv/installed: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@
