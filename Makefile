# make demo · make test · make test-kills · make mutants · make test-peer · make bench · make studies-smoke · make studies · make lint: each
# sets up .venv by itself. Nothing but Python ≥ 3.11, make and git is needed. make test-oldest sets up .venv-oldest, and needs
# Python 3.11.
#
#   PYTHON=python3.12                                      the Python to use
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu       where to take torch from; this one holds the small CPU build

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 1
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
BIN := .venv/bin

.PHONY: demo test test-kills mutants test-peer test-oldest bench bench-compiled studies-smoke studies reproduction error-table fault-table scaling scaling-table docs docs-serve docs-links space example-card lint format clean

demo: .venv/installed
	$(BIN)/reluformer train --config configuration/recipes/demo.yaml --overwrite
	@echo 'next: source .venv/bin/activate && reluformer translate --model runs/demo "dreiundzwanzig"'

test: .venv/installed
	$(BIN)/python -m pytest

# 100 kills of a tiny training at random moments: each run must end like one that was never killed.
test-kills: .venv/installed
	$(BIN)/python tests/training/run/kill_harness.py --kills 100 --output benchmarks/results/kills-cpu.json
	$(MAKE) fault-table

# 320 small faults planted in a copy of this repository: which of them do the tests see? Less than an hour of one core; fails if a
# fault survives that tests/mutation/explained.yaml does not explain. Writes benchmarks/MUTANTS.md.
mutants: .venv/installed
	$(BIN)/python -m tests.mutation.run --output benchmarks/results/mutants-cpu.json; \
	status=$$?; $(BIN)/python -m tests.mutation.table && exit $$status

# The library's own tests of its models, from its source package; PEER_TRANSFORMERS_TESTS=… adds those of generation.
test-peer: .venv/installed
	$(BIN)/python tests/peer/library_tests.py
	$(BIN)/python -m pytest tests/peer -rs

# Every lower bound of pyproject.toml at once, torch's excepted: see constraints-oldest.txt.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m pytest -rfEs

# Speed and memory of the attention and of whole models, on this machine alone: about 20 minutes on two idle cores. Writes
# benchmarks/results/ and benchmarks/ATTENTION.md. Whole models run as training should, with glibc keeping the memory of the
# logits (benchmarks/NOTES.md); the others with the allocator as it comes. speed/gpu.py measures nothing without a CUDA device.
bench: .venv/installed
	$(BIN)/python -m benchmarks.speed.attention
	$(BIN)/python -m benchmarks.memory.peak
	MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 $(BIN)/python -m benchmarks.speed.end_to_end
	$(BIN)/python -m benchmarks.speed.generation
	$(BIN)/python -m benchmarks.speed.gpu
	$(BIN)/python -m benchmarks.speed.attention_tables

# The same with the compiled loop, on a page of its own, benchmarks/ATTENTION_COMPILED.md.
bench-compiled: .venv/installed
	RELUFORMER_COMPILED=1 $(BIN)/python -m benchmarks.speed.attention
	RELUFORMER_COMPILED=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 $(BIN)/python -m benchmarks.speed.end_to_end
	$(BIN)/python -m benchmarks.speed.attention_tables

# Every study of the paper, so small that it means nothing: does all of it run?
studies-smoke: .venv/installed
	rm -rf runs/studies/smoke runs/studies-smoke
	$(BIN)/python -m benchmarks.studies --size smoke --results runs/studies-smoke
	$(BIN)/python -m benchmarks.studies --size smoke --results runs/studies-smoke --report runs/studies-smoke/reproduction.md

# The studies on CPU cores, for days; it goes on where it stopped. JOBS=2 trains two rows at once.
studies: .venv/installed
	$(BIN)/python -m benchmarks.studies --size cpu --jobs $(JOBS)
	$(MAKE) reproduction

reproduction: .venv/installed
	$(BIN)/python -m benchmarks.studies --report docs/reproduction.md

# docs/errors.md: what wrong input does, from the cases that the tests run.
error-table: .venv/installed
	$(BIN)/python -m tests.robustness.error_table

# docs/faults.md: what each fault looks like, from the cases that the tests provoke, and the last `make test-kills`.
fault-table: .venv/installed
	$(BIN)/python -m tests.robustness.fault_table

# Tokens a second of one and of two processes on this machine: some minutes on two idle cores. docs/scaling.md
scaling: .venv/installed
	MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 $(BIN)/python -m benchmarks.scaling.processes
	$(MAKE) scaling-table

scaling-table: .venv/installed
	$(BIN)/python -m benchmarks.scaling.tables

# docs/_build/html, warnings as errors; needs no network, and what it writes loads nothing from it.
docs: .venv/installed
	$(BIN)/python docs/reference_tables.py --check
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -b html -c docs -d docs/_build/doctrees -W --keep-going . docs/_build/html

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

# Fetches every external link: not in continuous integration.
docs-links: .venv/installed
	$(BIN)/python -m sphinx -b linkcheck -c docs -d docs/_build/doctrees . docs/_build/links

# A page that shows the attention of every head; make space MODEL=runs/a SECOND=runs/b: two models side by side.
MODEL ?= runs/demo
space: .venv/installed $(if $(filter runs/demo,$(MODEL)),runs/demo/README.md)
	$(BIN)/reluformer space --model $(MODEL) $(if $(SECOND),--second $(SECOND))

runs/demo/README.md:
	$(MAKE) demo

# docs/example_card.md from a finished run: make example-card RUN=runs/finetune_reluformer_from_softmax
example-card: .venv/installed
	$(BIN)/reluformer card --run $(RUN) --output docs/example_card.md

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --noconftest tests/test_import_direction.py

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest build dist *.egg-info

.venv/installed: constraints.txt
.venv/installed: EXTRAS := dev,docs,kernels,space,browser
.venv-oldest/installed: EXTRAS := dev
.venv/installed: PYTHON_NEEDED := >= (3, 11)
.venv-oldest/installed: constraints-oldest.txt
.venv-oldest/installed: PYTHON_NEEDED := == (3, 11)

# torch alone first: its index may hold nothing else.
.venv/installed .venv-oldest/installed: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.version_info[:2] $(PYTHON_NEEDED) or sys.exit("Python $(PYTHON_NEEDED) is needed, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(@D)/bin/python -m pip install -c $(filter constraints%,$^) -e '.[$(EXTRAS)]'
	touch $@
