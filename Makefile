# SPDX-License-Identifier: BSD-3-Clause
# All a person types. The building itself is CMake's (CMakePresets.json).

PYTHON := $(shell tools/python)
PREFIX ?= /usr/local
# How many seeds each simulation runs in `make soak`.
SEEDS ?= 100000

# What the demo and the measurements are started with.
DEMO_CMD = PYTHONPATH=build/release/python $(PYTHON) demo/main.py
BENCH_CMD = PYTHONPATH=build/release/python $(PYTHON) bench/run.py

.PHONY: help demo test bench bench-peers check install sanitize soak clean
.NOTPARALLEL:

help:
	@echo "make demo         train a classifier on Fashion-MNIST with 5 processes"
	@echo "make test         build and run all tests"
	@echo "make bench        measure, beside what the machine itself can do"
	@echo "make bench-peers  the same, beside torch.distributed.rpc (installs PyTorch)"
	@echo "make check        formatting, static analysis, and the rules of the house"
	@echo "make install      to PREFIX ($(PREFIX)), below DESTDIR if that is set"
	@echo "make sanitize     all tests with address+undefined, the C tests with thread sanitizer"
	@echo "make soak         the simulations with SEEDS ($(SEEDS)) seeds each, 200 runs with workers"
	@echo "                  killed, 1,000,000 references"
	@echo "make clean        remove build/"

demo:
	@tools/setup build demo
	@tools/build release
	@$(DEMO_CMD)

test:
	@tools/setup build test demo
	@tools/build dev
	@ctest --preset dev

bench:
	@tools/setup build bench
	@tools/build release
	@$(BENCH_CMD)

bench-peers:
	@tools/setup build bench peers
	@$(MAKE) --no-print-directory bench

check:
	@tools/setup build test check
	@tools/check

install:
	@tools/setup build
	@tools/build release -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	@DESTDIR=$(DESTDIR) cmake --install build/release
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

sanitize:
	@tools/setup build test check
	@tools/build asan
	@ctest --preset asan
	@tools/build tsan
	@ctest --preset tsan

soak:
	@tools/setup build test
	@tools/build dev
	@for sim in build/dev/tests/sim/test_*; do \
		FARCALL_SIM_SEEDS=$(SEEDS) "$$sim" || exit 1; \
	done
	@FARCALL_KILL_RUNS=200 build/dev/tests/integ/test_rref_loss killed_at_random
	@FARCALL_RREFS=125000 build/dev/tests/integ/test_rref_life memory_is_flat

clean:
	rm -rf build
