# shellcheck shell=bash
# For the scripts beside it: `source setup_venv.sh; setup_venv EXTRAS` installs
# hvd_keras, editable, with EXTRAS (as in pyproject.toml) into the active
# virtual environment and puts that on the PATH. If none is active, it takes
# .venv, and makes it if need be.
#
# PYTHON is the Python that makes .venv (default: python3).

setup_venv() {
  local extras=$1 log start=$SECONDS
  cd "$(dirname "${BASH_SOURCE[0]}")/.." || return
  log=$(mktemp)
  # shellcheck disable=SC2064
  trap "rm -f '$log'" RETURN

  if [ -z "${VIRTUAL_ENV:-}" ]; then
    _check_python "${PYTHON:-python3}" || return
    VIRTUAL_ENV=$PWD/.venv
    if ! "$VIRTUAL_ENV/bin/python" -m pip --version > "$log" 2>&1; then
      _say "Making a virtual environment in .venv"
      if ! "${PYTHON:-python3}" -m venv --clear .venv > "$log" 2>&1; then
        cat "$log" >&2
        _fail "Could not make .venv. On Debian: apt-get install python3-venv"
        return 1
      fi
    fi
  fi
  export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH
  _check_python python || return
  _check_compiler || return

  # Keep an installed TensorFlow, whatever its name.
  if ! python -c 'import importlib.util as u, sys
sys.exit(u.find_spec("tensorflow") is None)'; then
    extras=$extras,tensorflow-cpu
    _say "Installing hvd_keras and TensorFlow (minutes the first time)"
  else
    _say "Installing hvd_keras"
  fi
  if ! python -m pip install --disable-pip-version-check -e ".[$extras]" \
    > "$log" 2>&1; then
    cat "$log" >&2
    _fail "pip could not install hvd_keras; see above."
    return 1
  fi
  _say "Installed in $((SECONDS - start)) s"
}

_say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
_fail() { _say "error: $*"; return 1; }

_check_python() {
  if ! command -v "$1" > /dev/null; then
    _fail "Python not found: $1. Set PYTHON, or: apt-get install python3-venv"
    return
  fi
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    _fail "Python must be 3.10 or newer. Received: $("$1" --version) ($1)." \
      "Set PYTHON to a newer one."
}

_check_compiler() {
  local compiler=${CXX:-g++} header
  if ! command -v "${compiler%% *}" > /dev/null; then
    _fail "C++ compiler not found: $compiler. On Debian: apt-get install g++"
    return
  fi
  header=$(python -c 'import sysconfig
print(sysconfig.get_path("include"))')/Python.h
  [ -e "$header" ] ||
    _fail "Python's headers not found: $header." \
      "On Debian: apt-get install python3-dev"
}
