# Every target sets up .venv first. `make demo` and `make docs` install what they need; the others install all that tests
# need, in the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
NEEDED := Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=python3.12
CHECK := $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(NEEDED)")'
DEMO_READY := .venv/.ready.demo
DEV_READY := .venv/.ready.dev
RECIPES_READY := .venv/.ready.recipes
MUTMUT := .venv/.mutmut
SITE := .venv/.docs
PATHS := gossipdp/protocol/pairwise gossipdp/protocol/membership gossipdp/protocol/transfer
SAMPLE := 200
SEED := 0
JOBS := 2
GPU_READY := .venv/.ready.gpu
GPU_NEEDS := -e .[gpu] hypothesis pytest pytest-timeout
INDEX := $(if $(WHEELS),--no-index --find-links $(WHEELS))
WHEELS_PYTHON ?= 3.12
# The project's own needs without torch, which the machine has; what tests import; what builds an editable install.
LIST_WHEELS := import pathlib, tomllib; p = tomllib.loads(pathlib.Path("pyproject.toml").read_text()); \
  print(*(each for each in p["project"]["dependencies"] + p["build-system"]["requires"] if "torch" not in each), sep="\n")

.PHONY: demo quick test test-long recipes programs lint docs bench race gpu gpu-lab gpu-wheels lab mutants versions system clean
.DEFAULT_GOAL := test
# Images of containers often set it. Each worker and each process that a test starts would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

# A torch in the allowed range that PYTHON's installation has is kept: the environment then sees its packages. Tests run
# in an environment of their own, so that no other installed package changes them.
$(DEMO_READY): pyproject.toml constraints.txt
	@$(CHECK)
	@echo "Setting up .venv: 1.3 GB with a torch for the CPU, several GB with one for CUDA, little if a torch is there."
	@$(PYTHON) -m venv --without-pip --system-site-packages .venv
	@if $(BIN)/python .ci/kept_torch.py; then \
	  $(PYTHON) -m venv --system-site-packages .venv && $(PIP) --no-compile -e '.[demo]'; \
	else $(PYTHON) -m venv .venv && $(PIP) --no-compile -c constraints.txt -e '.[demo]'; fi
	touch $@

$(DEV_READY): pyproject.toml constraints.txt
	@$(CHECK)
	@echo "Setting up .venv with all that tests need: 2.5 GB with a torch for the CPU, several more with one for CUDA."
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev]'
	touch $(DEMO_READY) $@

# Without an index, a machine that reaches no registry installs from the folder WHEELS.
$(GPU_READY): pyproject.toml
	@$(CHECK)
	@$(PYTHON) -m venv --without-pip --system-site-packages .venv
	@$(BIN)/python .ci/kept_torch.py || { echo "make gpu: PYTHON=$(PYTHON) has no torch of pyproject.toml's range:" \
	  "install one for CUDA, or name a Python that has it: make gpu PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv --system-site-packages .venv
	$(PIP) --no-compile $(INDEX) $(GPU_NEEDS)
	$(PIP) --no-compile $(INDEX) --no-deps tokenizers  # what it needs beyond this downloads files of models
	touch $@

$(RECIPES_READY): $(DEV_READY)
	$(PIP) -c constraints.txt -e '.[recipes]'
	touch $@

$(MUTMUT): $(DEV_READY)
	$(PIP) -c constraints.txt -e '.[mutants]'
	touch $@

$(SITE): $(DEMO_READY)
	$(PIP) -e '.[docs]'
	touch $@

demo: $(DEMO_READY)  ## four peers on this machine train a small GPT; DEMO='--peers 6 --steps 3000'
	$(BIN)/gossipdp demo $(DEMO)

test: $(DEV_READY) system  ## all tests except the long ones
	$(BIN)/python .ci/compile_kernels.py
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations 25 -m 'not long'

test-long: $(DEV_READY)  ## all tests
	@sh .ci/packages long
	$(BIN)/python .ci/compile_kernels.py
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 60

recipes: $(RECIPES_READY)  ## every recipe with two real peers; RECIPES='lora or trl' for some
	$(BIN)/python .ci/compile_kernels.py
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -p no:xdist -s -m recipes $(if $(RECIPES),-k '$(RECIPES)')

quick: $(DEV_READY)  ## style, types and mirrored tests of what changed, within a minute; BASE=main: of the whole branch
	@$(BIN)/python .ci/quick.py $(BASE)

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(SITE)  ## the site, in build/docs; a broken link or anchor is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -j 2 -c docs . build/docs

programs: $(DEV_READY)  ## hides each program of .ci/programs in turn: the tests that need it skip
	$(BIN)/python .ci/hidden_programs.py

bench: $(DEV_READY)  ## measure ratios to the alternatives, side by side
	$(BIN)/python -m simulations.processes.benchmarks

race: $(DEV_READY) system  ## gossipdp, DDP, local SGD and DiLoCo as real processes on slow links, as root; RACE=--quick for less
	$(BIN)/python -m simulations.processes.race $(RACE)

gpu: $(GPU_READY)  ## tests and benchmark on a GPU, 9 minutes at most, into build/gpu.txt; WHEELS=build/wheels: no registry is asked
	$(BIN)/python .ci/gpu_run.py $(GPU)

gpu-lab: $(or $(wildcard $(DEV_READY)),$(GPU_READY))  ## the laboratory at 30 million parameters on a GPU, 8 minutes a call; GPU_LAB=--small on a CPU
	$(BIN)/python -m simulations.lab.gpu $(GPU_LAB)

gpu-wheels:  ## for make gpu and gpu-lab on another machine: the wheels of WHEELS_PYTHON (3.12), into build/wheels; torch stays out
	@mkdir -p build && $(PYTHON) -c '$(LIST_WHEELS)' > build/gpu-wheels.txt
	$(PYTHON) -m pip download --quiet --only-binary :all: --python-version $(WHEELS_PYTHON) --dest $(or $(WHEELS),build/wheels) \
	  -r build/gpu-wheels.txt nvidia-ml-py hypothesis pytest pytest-timeout editables
	$(PYTHON) -m pip download --quiet --only-binary :all: --python-version $(WHEELS_PYTHON) --dest $(or $(WHEELS),build/wheels) \
	  --no-deps tokenizers

lab: $(DEV_READY)  ## every suite of the laboratory (hours); LAB='clock b8 --seeds 1 --jobs 2' for less
	$(BIN)/python -m simulations.lab.pages.main $(if $(LAB),$(LAB),all)

mutants: $(MUTMUT)  ## mutation testing; PATHS='gossipdp/protocol/transfer' SAMPLE=0 tries every mutant of one package
	$(BIN)/python .ci/mutants.py $(PATHS) --sample $(SAMPLE) --seed $(SEED) --jobs $(JOBS)

versions:  ## the lowest or the newest dependencies, or wheels for aarch64: VERSIONS=newest, PYTHON=python3.13
	@$(CHECK)
	$(PYTHON) .ci/versions.py $(or $(VERSIONS),lowest)

system:  # Debian packages that some tests use
	@sh .ci/packages

clean:
	rm -rf .venv mutants build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
