# Tidegate. `make` alone prints what there is. Every target sets up what it needs by itself.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
JOBS  ?= auto
ARGS  ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: Python 3.13, Debian packages and runsc (as root), .venv
	@bash tools/setup.sh

demo: setup ## The worked attack on real input, one screen: what passes, what is refused, its log
	@bash tools/gvisor.sh || true
	@$(BIN)/python -m tests.lab.demo $(ARGS)

test: check ## All checks and all tests (ARGS="-k name" for some of them)
	-@bash tools/engine.sh
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: setup ## Style, types, layers, and nothing of this machine in the tree
	@bash tools/check.sh

bench: setup ## Load against stock mitmdump, launches against runsc: interleaved, with ratios (ARGS="--rounds 5")
	@$(BIN)/python -m tests.bench $(ARGS)

format: setup ## Let ruff format and sort
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## Write requirements.lock and requirements-dev.lock anew from pyproject.toml
	@bash tools/lock.sh

clean: ## Remove what was made here (.venv, caches, build products); no cache outside of it
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	$(MAKE) -s -C tests/bench clean
