# Everything a developer runs. `make` alone lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := .venv/.installed
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*.h csrc/*.cpp)
CPP := $(wildcard csrc/*.h csrc/*.cpp csrc/tests/*.h csrc/tests/*.cpp)

# What does not build on each other runs side by side: lint beside the C++ tests.
MAKEFLAGS += --jobs=2

# Hundreds of processes of the tests import the package: compiled once, not in each of them.
unexport PYTHONDONTWRITEBYTECODE

# mpirun in tests: CI runs as root, and with fewer cores than processes.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1

.PHONY: help env train demo-realtime test test-long test-gpu measure-gpu lint format api docs docs-plan protos sanitize bench bench-peers \
	test-clients \
	ci-deps docs-deps wheel clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

env: $(STAMP) ## the environment in .venv, with the package built and installed in place

$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) cmake nanobind ninja scikit-build-core
	$(PIP) --no-build-isolation -e '.[dev]'
	touch $@

train: env ## the main job: DeepFM on MovieLens-100K, against a table with collisions
	$(BIN)/hedgerow train examples/movielens.toml --compare

demo-realtime: env ## what freshness is worth: served with a sync each second, each minute, never; build/realtime/auc.png
	$(BIN)/python examples/realtime.py --out build/realtime

test: env lint sanitize ## checks, C++ tests under sanitizers, all tests but the long ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not long and not alone"
	$(BIN)/python -m pytest -q -m "alone and not long" tests/sync

test-long: env lint sanitize ## everything
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not alone"
	$(BIN)/python -m pytest -q -m alone tests/sync

test-gpu: ## on a GPU machine with torch, Triton and pytest: kernels and device tables
	$(PYTHON) -m pytest -c tests/gpu.ini --rootdir . tests/gpu tests/kernels tests/tables/test_device*.py tests/tables/multi/test_device*.py

# Without a package index nanobind's folder lies in .carry. One measurement that fails does not keep the next from being taken.
measure-gpu: OUT ?= build
measure-gpu: ## on a GPU machine with torch, Triton, cmake and ninja: tiers, their calibration, what plans say; JSON in OUT
	mkdir -p $(OUT)
	cmake -S . -B build/gpu -G Ninja $(if $(wildcard .carry/nanobind),-Dnanobind_DIR=$(CURDIR)/.carry/nanobind/cmake)
	cmake --build build/gpu && cp build/gpu/_native*.so hedgerow/native/
	failed=0; \
	$(PYTHON) -m benchmarks.gpu_tiers --json > $(OUT)/gpu_tiers.json || failed=1; \
	$(PYTHON) -m hedgerow.calibration.calibrate --device cuda --out $(OUT)/calibration.json || failed=1; \
	$(PYTHON) -m benchmarks.gpu_predict $(OUT)/calibration.json > $(OUT)/gpu_predict.json || failed=1; \
	exit $$failed

# MISSING_OK=1 lets it pass without a client whose packages the index does not have.
test-clients: env ## clients of other projects against our server, each in an environment of its own; about 2 GB
	-$(MAKE) -k $(patsubst %,.clients/%/.installed,min_tfs ovms triton stubs tf_serving)
	$(BIN)/python -m tools.clients.run .clients $(if $(MISSING_OK),--missing-ok)

.clients/%/.installed: tools/clients/%.txt
	$(PYTHON) -m venv .clients/$*
	.clients/$*/bin/python -m pip install --quiet --disable-pip-version-check -r tools/clients/$*.txt
	touch $@

lint: env ## style, types, contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python tools/contracts.py
	$(BIN)/basedpyright

format: env ## rewrites sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

api: env ## records the public surface after a change that is meant
	mkdir -p build && $(BIN)/python -m tools.api > build/api.json && mv build/api.json tests/golden/api.json

docs: env ## the documentation as a site in build/site; fails on a warning, needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-plan: env ## the page of a sample plan, opened in headless Chromium; its picture goes to docs/images/plan.png
	$(BIN)/python tools/docs.py

protos: env ## compiles hedgerow/wire/protos after a change of a .proto file
	$(BIN)/python -m tools.protos

sanitize: env ## the C++ tests under address+undefined and thread sanitizers
	for kind in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/sanitize-$${kind%%,*} -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DHEDGEROW_MODULE=OFF -DHEDGEROW_TESTS=ON -DHEDGEROW_SANITIZE=$$kind && \
	  $(BIN)/cmake --build build/sanitize-$${kind%%,*} && \
	  $(BIN)/ctest --test-dir build/sanitize-$${kind%%,*} --output-on-failure -j2 || exit 1; \
	done

bench: env ## the host table against its peers; `hedgerow bench table --help` tells more
	$(BIN)/hedgerow bench table

bench-peers: .peers/torch/.installed .peers/tfra/.installed ## environments of the peers that need their own; about 2.5 GB

# No peer is a dependency: each environment stands for itself, and the benchmark starts its Python.
.peers/torch/.installed: tools/peers/torch.txt constraints.txt
	$(PYTHON) -m venv .peers/torch
	.peers/torch/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	.peers/torch/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/peers/torch.txt
	touch $@

.peers/tfra/.installed: tools/peers/tfra.txt
	$(PYTHON) -m venv .peers/tfra
	.peers/tfra/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/peers/tfra.txt
	touch $@

# Without one of these, what needs it is skipped aloud: mpirun and ZooKeeper by tests, Chromium by `make docs-plan`.
ci-deps: DEBIAN := mpirun:openmpi-bin /usr/share/java/zookeeper.jar:zookeeper
ci-deps: ## Debian packages that some tests need: openmpi-bin (mpirun), zookeeper
docs-deps: DEBIAN := chromium-headless-shell:chromium-headless-shell
docs-deps: ## Debian packages that make docs-plan needs: chromium-headless-shell
ci-deps docs-deps:
	@sudo=; test "$$(id -u)" = 0 || sudo="sudo -n"; \
	for pair in $(DEBIAN); do program=$${pair%:*}; package=$${pair#*:}; \
	if command -v $$program > /dev/null || test -e $$program; then echo "$@: $$program is there"; \
	elif ! command -v apt-get > /dev/null; then echo "$@: SKIPPED: $$package: no apt-get here"; \
	elif ! $$sudo true 2> /dev/null; then echo "$@: SKIPPED: $$package: neither root nor sudo"; \
	elif $$sudo env DEBIAN_FRONTEND=noninteractive sh -c "apt-get -qq update; \
	  apt-get -qq install --yes --no-install-recommends $$package" > /dev/null; \
	then echo "$@: $$package is installed"; \
	else echo "$@: SKIPPED: $$package: apt-get could not install it"; fi; done

wheel: env ## dist/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation --no-deps -w dist .

clean: ## removes everything that was built
	rm -rf .venv .peers build dist
