#!/usr/bin/env bash
# Sets up .venv (or takes the active virtual environment) and runs the Python
# tests in it, in two processes (tests/schedule.py).
#
# Usage: tools/test.sh [arguments of pytest]
set -euo pipefail
source "$(dirname "$0")/setup_venv.sh"

setup_venv test
exec python -m pytest -n 2 --dist loadgroup "$@"
