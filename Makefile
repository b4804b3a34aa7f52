# Every target sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MUTMUT := .venv/.mutmut
SITE := .venv/.docs
PATHS := gossipdp/protocol/pairwise gossipdp/protocol/membership gossipdp/protocol/transfer
SAMPLE := 200
SEED := 0
JOBS := 2

.PHONY: demo test test-long lint docs bench lab mutants system clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(MUTMUT): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	touch $@

$(SITE): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

demo: $(READY)  ## four peers on this machine train a small GPT; ALGORITHM=epidemic, DEMO='--peers 6 --steps 3000'
	$(BIN)/gossipdp demo $(if $(ALGORITHM),--algorithm $(ALGORITHM)) $(DEMO)

test: $(READY) system  ## all tests except the long ones
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations 25 --timeout 600 -m 'not long'

test-long: $(READY) system  ## all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 60

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(SITE)  ## the site, in build/docs; a broken link or anchor is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -j 2 -c docs . build/docs

bench: $(READY)  ## measure ratios to the alternatives, side by side
	$(BIN)/python -m simulations.processes.benchmarks

lab: $(READY)  ## every suite of the laboratory (hours); LAB='b1 b8 --seeds 1 --jobs 2' for less
	$(BIN)/python -m simulations.lab.pages.main $(if $(LAB),$(LAB),all)

mutants: $(MUTMUT)  ## mutation testing; PATHS='gossipdp/protocol/transfer' SAMPLE=0 tries every mutant of one package
	$(BIN)/python .ci/mutants.py $(PATHS) --sample $(SAMPLE) --seed $(SEED) --jobs $(JOBS)

system:  # Debian packages that some tests use
	@sh .ci/packages

clean:
	rm -rf .venv mutants build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
