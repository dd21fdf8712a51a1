# Everything from a fresh clone with nothing but make and a Python of 3.11 or newer.
# Each target makes its virtual environment and installs what it needs; the second time nothing is left to install.

PYTHON ?=
TORCH_INDEX ?=
VENV ?= .venv

DEMO = onehop train quickstart --fresh

PY = $(VENV)/bin/python
READY = $(VENV)/.ready
# Without compiling every file of every package, which takes longer than the rest: what is used is compiled when it is used.
PIP = PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq --no-input --no-compile
WARM_UP = PYTHONDONTWRITEBYTECODE= $(PY) -c 'import matplotlib.pyplot, torch'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-slow lint bench python clean check-choices

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1@/p' Makefile | awk -F@ '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo "PYTHON=NAME      the Python to use: 3.11 or newer (found by itself where it is left out)"
	@echo "TORCH_INDEX=URL  where to take torch from, for another build than the usual one"
	@echo "VENV=FOLDER      the environment to use instead of .venv; a torch that is in it is kept"

demo: $(READY)/core ## train a small model on built-in stories and show what it learned
	@$(VENV)/bin/$(DEMO)

test: lint ## check style and types, then run the tests
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses=4 --dist=loadfile

test-slow: $(READY)/dev ## run the tests that take minutes or need a real model
	@$(PY) -m pytest -m "slow or real_model"

lint: $(READY)/dev ## check style and types
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

bench: $(READY)/dev ## measure time and memory on this machine
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(PY) "$$script" || exit 1; done

python: ## print which Python would be used
	@$(FIND_PYTHON); "$$found" -c 'import sys; print(sys.executable, sys.version.split()[0])'

clean: ## remove .venv and what the tools left behind
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find onehop tests -name __pycache__ -prune -exec rm -rf {} +

# What the targets stand on: an environment, then torch, then onehop, with or without its development tools.

CANDIDATES = $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python3.14 python)
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
CAN_MAKE_VENV = import ensurepip, venv; $(NEW_ENOUGH)
IDENTITY = import sys; print(sys.base_prefix, sys.version)
TORCH_THERE = import importlib.metadata as m; print("torch==" + m.version("torch"))
TORCH_PIN = $$(grep '^torch==' constraints.txt)
TORCH_LOWEST = $(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
TORCH_FITS = import importlib.metadata as m, re, sys; number = lambda text: [int(n) for n in re.findall("[0-9]+", text)[:2]]; \
	sys.exit(number(m.version("torch")) < number("$(TORCH_LOWEST)"))

# A command may exist and not work (a version manager's shim, a system without ensurepip), so each candidate is tried.
FIND_PYTHON = found=; \
	for p in $(CANDIDATES); do if "$$p" -c '$(CAN_MAKE_VENV)' >/dev/null 2>&1; then found=$$p; break; fi; done; \
	[ -n "$$found" ] || $(call refuse,onehop needs Python 3.11 or newer with venv and ensurepip; tried: \
	$(subst ",,$(CANDIDATES)). Name one: make PYTHON=/path/to/python3)
refuse = { echo "$(strip $(1))" >&2; exit 1; }

check-choices:
	@[ ! -x $(PY) ] || $(PY) -c '$(NEW_ENOUGH)' || $(call refuse,$(VENV) holds $$($(PY) -V); onehop needs 3.11 or newer.)
	@[ -z "$(PYTHON)" ] || [ ! -x $(PY) ] || [ "$$("$(PYTHON)" -c '$(IDENTITY)')" = "$$($(PY) -c '$(IDENTITY)')" ] || \
	$(call refuse,$(VENV) holds another Python than PYTHON=$(PYTHON): $$($(PY) -V). Run make clean first or choose VENV=.)
	@[ -z "$(TORCH_INDEX)" ] || [ ! -e $(READY)/torch ] || [ "$(TORCH_INDEX)" = "$$(cat $(READY)/torch)" ] || \
	$(call refuse,$(VENV) holds a torch from elsewhere than TORCH_INDEX. Run make clean first or choose VENV=.)

$(PY): | check-choices
	@$(FIND_PYTHON); echo "making $(VENV) with $$found"; "$$found" -m venv $(VENV)

# First and alone: the one large package, of which there are several builds. One that is there already is kept.
$(READY)/torch: $(PY)
	@mkdir -p $(READY)
	@$(PY) -c 'import pip' 2>/dev/null || $(PY) -m ensurepip >/dev/null
	@if there=$$($(PY) -c '$(TORCH_THERE)' 2>/dev/null); then \
		[ -z "$(TORCH_INDEX)" ] || $(call refuse,TORCH_INDEX is of no use: $(VENV) holds $$there already.); \
		$(PY) -c '$(TORCH_FITS)' || $(call refuse,$(VENV) holds $$there; onehop needs $(TORCH_LOWEST) or newer.); \
		echo "keeping $$there"; \
	else \
		echo "installing torch, the large one"; \
		$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)",-c constraints.txt) $(TORCH_PIN); \
	fi
	@echo "$(TORCH_INDEX)" > $@

INSTALL = { grep -v '^torch==' constraints.txt; $(PY) -c '$(TORCH_THERE)'; } > $(READY)/constraints.txt; \
	$(PIP) -c $(READY)/constraints.txt -e

$(READY)/core: $(READY)/torch pyproject.toml constraints.txt
	@echo "installing onehop"
	@$(INSTALL) .
	@$(WARM_UP)
	@touch $@

$(READY)/dev: $(READY)/torch pyproject.toml constraints.txt
	@echo "installing onehop and its development tools"
	@$(INSTALL) '.[dev]'
	@$(WARM_UP)
	@touch $(READY)/core $@
