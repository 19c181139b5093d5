#!/usr/bin/env bash
# Runs the equality cases on 2 ranks with the sources of Keras, and notes the
# result in docs/versions.md, in the column of Keras's main branch.
#
# Usage: [PYTHON=python] tools/try_keras_source.sh [CLONE|URL] [BACKEND ...]
#
# CLONE is a folder with Keras's sources, as it is; URL is cloned into build/.
# PYTHON has the other packages. Without BACKEND all that are installed run.
set -euo pipefail
cd "$(dirname "$0")/.."

source=${1:-https://github.com/keras-team/keras}
shift || true
if [ ! -d "$source" ]; then
  rm -rf build/keras_source
  git clone --quiet --depth 1 "$source" build/keras_source
  source=build/keras_source
fi
source=$(realpath "$source")
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/keras/src/version.py")
details="$version, sources"
if [ -d "$source/.git" ]; then
  details="$version, $(git -C "$source" log -1 --format='%h of %cs')"
fi
echo "Keras $details, in $source"
options=()
if [ $# -gt 0 ]; then
  options=(--backends "$@")
fi
PYTHONPATH="$source:$PWD:tests" exec "${PYTHON:-python}" -m equality.versions \
  --column "Keras's main branch ($details)" --write "${options[@]}"
