#!/usr/bin/env bash
# Sets up .venv (or takes the active virtual environment) and runs
# examples/keras_digits.py in it, on NP processes (default: 2).
#
# Usage: [NP=2] tools/run_example.sh [arguments of the example]
set -euo pipefail
source "$(dirname "$0")/setup_venv.sh"

setup_venv examples
exec hvdrun -np "${NP:-2}" -- python examples/keras_digits.py "$@"
