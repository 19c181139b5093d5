#!/usr/bin/env bash
# Tries hvd_keras with a source tree of Keras, such as a clone of its main
# branch. It runs the smoke tests on 2 processes, with Keras on TensorFlow and
# on JAX, tests on torch, and the tests of the private names that we use.
#
# Usage: tools/try_keras_source.sh PATH
# PATH is the folder that holds Keras's `keras/`. It takes the active virtual
# environment or .venv, with the `test` extra (tools/test.sh installs it). The
# Keras in there stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

source=$(realpath "${1:?give the path of a source tree of Keras}")
if [ ! -f "$source/keras/src/version.py" ]; then
  echo "Not a source tree of Keras: $source" >&2
  exit 2
fi
python=${VIRTUAL_ENV:-$PWD/.venv}/bin/python
export PYTHONPATH=$source:$PWD TF_CPP_MIN_LOG_LEVEL=2

found=$("$python" -c 'import keras; print(keras.__version__, keras.__file__)')
case $found in
  *" $source/"*) echo "Keras $found" ;;
  *) echo "Imported another Keras: $found" >&2 && exit 1 ;;
esac

run() { timeout 300 "$python" -m hvd_keras.run -np 2 -- "$python" "$@"; }
run tools/smoke_test.py
KERAS_BACKEND=jax run tools/smoke_test_jax.py
KERAS_BACKEND=torch run -m pytest -q -W ignore -p no:cacheprovider \
  tests/backends/test_torch_distributed.py
"$python" -m pytest -q -p no:cacheprovider tests/unit/test_keras_private.py \
  tests/unit/test_tensorflow_private.py
