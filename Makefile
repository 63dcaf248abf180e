# `make demo` and `make test` set up .venv, build and run; the rest are their parts.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
SOABI := 'import sysconfig; print(sysconfig.get_config_var("SOABI"))'

.PHONY: demo test test-slow bench format lint clean

demo: $(VENV)/.built
	$(BIN)/afd-launch --m 1 --n 1 --model smollm2-moe --prompt "What is the capital of France? Answer in one sentence."

test: $(VENV)/.built $(VENV)/.dev
	$(BIN)/python -m pytest tests

test-slow: $(VENV)/.built $(VENV)/.dev
	$(BIN)/python -m pytest tests -m slow

bench: $(VENV)/.built $(VENV)/.dev
	$(BIN)/python bench/decode.py

format: $(VENV)/.dev
	$(BIN)/ruff check -q --fix . && $(BIN)/ruff format -q .
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' | xargs $(BIN)/clang-format -i

lint: $(VENV)/.built $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python tests/import_directions.py
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info afd/_megamoe*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Build requirements first, so that the editable install can share CMake's build folder.
$(VENV)/.built: $(VENV)/bin/python pyproject.toml setup.py CMakeLists.txt constraints.txt \
		$(shell git ls-files csrc bench/megamoe 2>/dev/null || find csrc bench/megamoe -type f)
	$(INSTALL) setuptools wheel pybind11 cmake ninja numpy torch
	$(INSTALL) --no-build-isolation -e '.[tools]'
	$(BIN)/cmake --install build/cmake-`$(BIN)/python -c $(SOABI)` --prefix $(VENV) >/dev/null
	@touch $@

$(VENV)/.dev: $(VENV)/.built pyproject.toml constraints.txt
	$(INSTALL) --no-build-isolation -e '.[tools,plan]'
	$(INSTALL) pytest pytest-timeout hypothesis pexpect ruff mypy clang-format
	@touch $@
