# make demo · make test · make test-all · make test-avx2 · make test-arm · make test-kills · make mutants · make mutants-sample · make test-peer · make bench · make bench-avx2 · make bench-sparse · make size · make gpu-bundle · make studies-smoke ·
# make studies · make wheel · make lint: each sets up .venv by itself. Nothing but Python ≥ 3.11, make and git is needed. make test-newest sets up
# .venv-newest; make test-oldest sets up .venv-oldest, and needs Python 3.11.
#
#   PYTHON=python3.12                                      the Python to use
#   WORKERS=2                                              processes that run the tests; default: one a core
#   THREADS=2                                              threads of torch in each of them; default: 1
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu       where to take torch from; this one holds the small CPU build

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 1
WORKERS ?= logical
THREADS ?= 1
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
BIN := .venv/bin

.PHONY: demo test test-slow test-all test-avx2 test-arm test-kills mutants mutants-sample test-peer test-newest test-newest-short test-oldest bench bench-avx2 bench-sparse size gpu-bundle studies-smoke studies reproduction error-table docs docs-serve docs-links space example-card wheel lint format clean

EVERYDAY := "Wo ist der Bahnhof?" "Ich habe heute leider keine Zeit." "Kannst du mir bitte helfen?"
demo: .venv/train
	$(BIN)/reluformer train --config configuration/recipes/demo.yaml --overwrite
	@echo; echo 'dreiundzwanzig'
	$(BIN)/reluformer translate --model runs/demo "dreiundzwanzig"
ifneq ($(wildcard models/tatoeba-de-en),)
	@echo; echo 'and by a model that comes with the package:'; printf '%s\n' $(EVERYDAY)
	$(BIN)/reluformer translate $(EVERYDAY)
endif
	@echo; echo 'next: source .venv/bin/activate && reluformer translate "Guten Morgen!"'

# Every behaviour once: about five minutes on two cores.
test: .venv/all
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

# The exhaustive products: killed processes, torchrun, compiled kernels, pages in a browser, every activation with every
# option. Continuous integration runs both. What takes minutes begins first, so that no process waits for another at the end.
LONGEST := tests/modeling_reluformer/fused/test_triton.py tests/benchmarks/studies/test_studies.py tests/benchmarks/test_ship.py
test-slow: .venv/all
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m slow $(LONGEST) tests

test-all: test test-slow

# Some tests as a processor with AVX2 and nothing newer, which qemu emulates: Intel's Haswell, less what qemu lacks and would warn of.
EMULATED := qemu-x86_64-static -cpu Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid
test-avx2: .venv/all .venv/compiled
	@command -v $(firstword $(EMULATED)) >/dev/null || { echo "needs $(firstword $(EMULATED)), on Linux on x86-64 (Debian: apt install qemu-user-static)"; exit 1; }
	OMP_NUM_THREADS=$(THREADS) $(EMULATED) $(BIN)/python -m tests.smaller_processor

# The compiled library on ARM, by a cross compiler and an emulator: attention, sparse networks, and translation with the bits of x86. ARM holds
# Debian's Python for arm64, and the last torch for it without CUDA, which is older than the package's lower bound: only the library needs it.
ARM := .venv-arm
ARM_TOOLS := aarch64-linux-gnu-g++ qemu-aarch64-static apt-get dpkg
test-arm: .venv/all .venv/compiled
	@for tool in $(ARM_TOOLS); do command -v $$tool >/dev/null || { echo "needs $$tool, on Debian 12 on x86-64 (apt install g++-aarch64-linux-gnu qemu-user-static)"; exit 1; }; done
	@dpkg --print-foreign-architectures | grep -qx arm64 || { echo "needs the packages of arm64: dpkg --add-architecture arm64 && apt-get update"; exit 1; }
	$(MAKE) $(ARM)/ready
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m tests.arm_processor $(ARM)

ARM_DEBIAN := python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgomp1 libgcc-s1 zlib1g libexpat1 libffi8 \
	libssl3 libbz2-1.0 liblzma5 libuuid1 libcrypt1
ARM_PYTHON := torch==2.9.1 numpy typing_extensions sympy mpmath networkx jinja2 markupsafe filelock fsspec
$(ARM)/ready:
	rm -rf $(ARM) && mkdir -p $(ARM)/packages $(ARM)/root
	cd $(ARM)/packages && apt-get download -q $(addsuffix :arm64,$(ARM_DEBIAN))
	for package in $(ARM)/packages/*.deb; do dpkg -x $$package $(ARM)/root || exit 1; done
	$(BIN)/python -m pip install -q --target $(ARM)/site --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 \
		--only-binary=:all: --no-deps --no-compile --python-version 311 $(ARM_PYTHON)
	touch $@

# 100 kills of a tiny training at random moments: each run must end like one that was never killed.
test-kills: .venv/all
	$(BIN)/python -m tests.training.run.kill_harness --kills 100 --output benchmarks/results/kills-cpu.json

# Faults planted in a copy of this repository, in Python, C++ and Triton: do the tests notice each? Less than an hour of one core;
# fails if one survives. Writes benchmarks/MUTANTS.md.
mutants: .venv/all
	$(BIN)/python -m tests.mutation.run

# Small changes of the installed code, drawn by chance: which do the tests notice? About ten seconds of one core each, once the tests are
# recorded; fails if one survives that is not judged equivalent. Writes benchmarks/results/mutants-sample-SEED.json and benchmarks/MUTANTS.md.
SEED ?= 7
COUNT ?= 200
mutants-sample: .venv/all
	$(BIN)/python -m tests.mutation.sample --seed $(SEED) --count $(COUNT) $(MORE)

# The library's own tests of its models, from its source package; PEER_TRANSFORMERS_TESTS=… adds those of generation.
test-peer: .venv/all
	$(BIN)/python tests/peer/library_tests.py
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) tests/peer -rs

# What test runs, with the newest release of everything but torch, as `pip install` takes it today.
test-newest: .venv-newest/dev
	OMP_NUM_THREADS=$(THREADS) .venv-newest/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

# Of that, what a new Transformers breaks first: models, generation, the trainer, remote code without the package. Some three minutes on two cores.
test-newest-short: .venv-newest/dev
	OMP_NUM_THREADS=$(THREADS) .venv-newest/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" \
		$(addprefix tests/,$(addprefix modeling_reluformer/test_,$(addsuffix .py,decoder generation loss model remote_code vision)) \
		training/test_trainer.py translating/test_translation.py)

# Every lower bound of pyproject.toml at once, torch's excepted: see constraints-oldest.txt.
test-oldest: .venv-oldest/dev
	.venv-oldest/bin/python -m pytest -rfEs

# Speed of the attention and of whole models, beside rivals, on this machine alone, which must be idle. Writes
# benchmarks/results/, benchmarks/ATTENTION.md and MODELS.md. All of it with the allocator as it comes; benchmarks/NOTES.md says what glibc's
# variables give. On a GPU: python -m benchmarks.gpu --help
bench: .venv/all
	$(BIN)/python -m benchmarks attention end-to-end generation translating vision decoder

# Attention beside softmax and torch's own product, and translating beside CTranslate2, everything held to AVX2 as on processors that
# have no more; about fifteen minutes of an idle machine. Writes benchmarks/results/attention-avx2-cpu.json and
# translating-avx2-cpu.json, beside the results of all instructions, and benchmarks/ATTENTION.md and MODELS.md.
AVX2_ALONE := ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=avx2 CT2_FORCE_CPU_ISA=AVX2
bench-avx2: .venv/all
	$(AVX2_ALONE) $(BIN)/python -m benchmarks attention-avx2 translating-avx2

# Models whose feed-forward networks skip zeros, beside torch, the same loop without skipping, and int8, on an idle machine.
# Writes benchmarks/results/sparse-models-cpu.json and benchmarks/SPARSE.md.
bench-sparse: .venv/all
	$(BIN)/python -m benchmarks sparse-models

# Lines of every folder, of a published model's code and of functions.
size: .venv/all
	$(BIN)/python -m benchmarks.size

# build/gpu: the source, the corpora and the packages that a GPU machine without network needs: sh build/gpu/run check
DATA ?= ../shared/data
GPU_PACKAGES ?= datasets dill multiprocess jsonargparse docstring_parser typeshed_client sacremoses num2words
GPU := build/gpu
gpu-bundle: .venv/all
	rm -rf $(GPU) && mkdir -p $(GPU)/data $(GPU)/site
	git archive HEAD benchmarks tests pyproject.toml constraints.txt ':(exclude,glob)benchmarks/results/*' ':!benchmarks/results/studies' | tar x -C $(GPU)
	$(BIN)/python -m pip install -q --no-deps --no-compile --target $(GPU)/site .
	$(if $(GPU_PACKAGES),$(BIN)/python -m pip install -q --no-deps --no-compile --only-binary=:all: --python-version 3.12 -c constraints.txt --target $(GPU)/site $(GPU_PACKAGES))
	for corpus in multi30k tatoeba; do test ! -d $(DATA)/$$corpus || cp -r $(DATA)/$$corpus $(GPU)/data; done
	printf '{"git_commit": "%s", "git_dirty": false}\n' $$(git rev-parse HEAD) > $(GPU)/COMMIT.json
	printf '#!/bin/sh\ncd "$$(dirname "$$0")" && PYTHONPATH=site exec python3 -m benchmarks.gpu "$$@"\n' > $(GPU)/run
	du -hd1 $(GPU)

# Every study of the paper, so small that it means nothing: does all of it run?
studies-smoke: .venv/all
	rm -rf runs/studies/smoke runs/studies-smoke
	$(BIN)/python -m benchmarks.studies --size smoke --results runs/studies-smoke
	$(BIN)/python -m benchmarks.studies --size smoke --results runs/studies-smoke --report runs/studies-smoke/reproduction.md

# The studies on CPU cores, for days; it goes on where it stopped. JOBS=2 trains two rows at once.
studies: .venv/all
	$(BIN)/python -m benchmarks.studies --size cpu --jobs $(JOBS)
	$(MAKE) reproduction

reproduction: .venv/all
	$(BIN)/python -m benchmarks.studies --report docs/reproduction.md
	$(BIN)/python docs/reference_tables.py
	$(BIN)/python -m benchmarks.deciding_pictures

# docs/errors.md: what wrong input does, from the cases that the tests run.
error-table: .venv/all
	$(BIN)/python -m tests.robustness.cases

# docs/_build/html, warnings as errors; needs no network, and what it writes loads nothing from it.
docs: .venv/all
	$(BIN)/python docs/reference_tables.py --check
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -b html -c docs -d docs/_build/doctrees -W --keep-going . docs/_build/html

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

# Fetches every external link: not in continuous integration.
docs-links: .venv/all
	$(BIN)/python -m sphinx -b linkcheck -c docs -d docs/_build/doctrees . docs/_build/links

# A page that shows the attention of every head; make space MODEL=runs/a SECOND=runs/b: two models side by side.
MODEL ?= runs/demo
space: .venv/all $(if $(filter runs/demo,$(MODEL)),runs/demo/README.md)
	$(BIN)/reluformer space --model $(MODEL) $(if $(SECOND),--second $(SECOND))

runs/demo/README.md:
	$(MAKE) demo

# docs/example_card.md from a finished run: make example-card RUN=runs/demo
example-card: .venv/all
	$(BIN)/reluformer card --run $(RUN)
	cp $(RUN)/training_curve.png $(RUN)/attention_map.png docs/example_card_files/
	sed -E 's#\]\((training_curve|attention_map)#](example_card_files/\1#' $(RUN)/README.md > docs/example_card.md

# dist/*.tar.gz, the source package, and dist/*.whl, built from it with the compiled library inside, for this kind of processor
# and the torch of .venv; needs a C++ compiler.
wheel: .venv/all
	rm -f dist/reluformer-*
	RELUFORMER_COMPILED=1 $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/reluformer-*

CPP = $(shell find modeling_reluformer -name '*.cpp' -o -name '*.h')
lint: .venv/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python -m pytest --noconftest tests/test_import_direction.py tests/test_function_lengths.py

format: .venv/all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf .venv .venv-newest .venv-oldest build dist *.egg-info

# What a user needs, and what the tests need beside it; both in .venv.
.venv/train: EXTRAS := train
.venv/all: EXTRAS := all
.venv-newest/dev .venv-oldest/dev: EXTRAS := dev
.venv/train .venv/all: constraints.txt
.venv/train .venv/all .venv-newest/dev: PYTHON_NEEDED := >= (3, 11)
.venv/train .venv/all: VERSIONS := -c constraints.txt
.venv-newest/dev: newest-of-today  # which is no file: every call looks for newer ones
.venv-newest/dev: VERSIONS := --upgrade --upgrade-strategy eager $(TORCH)
.PHONY: newest-of-today
.venv-oldest/dev: constraints-oldest.txt
.venv-oldest/dev: VERSIONS := -c constraints-oldest.txt
.venv-oldest/dev: PYTHON_NEEDED := == (3, 11)
# torch alone first: its index may hold nothing else.
.venv/train .venv/all .venv-newest/dev .venv-oldest/dev: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.version_info[:2] $(PYTHON_NEEDED) or sys.exit("Python $(PYTHON_NEEDED) is needed, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.11 …")'
	test -e $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(@D)/bin/python -m pip install $(VERSIONS) -e '.[$(EXTRAS)]'
	touch $@ $(@D)/train

# Before the tests, which would all wait for the one that builds; without a compiler, they say so themselves.
test test-slow: .venv/compiled
.venv/compiled: .venv/all modeling_reluformer/compiled/building.py $(CPP)
	-$(BIN)/python -m reluformer.modeling_reluformer.compiled
	touch $@
