#!/usr/bin/env bash
# Builds one wheel and tries it with several versions of TensorFlow, each in its
# own environment: it runs tools/smoke_test.py on 2 processes. With JAX ("jax")
# it runs tools/smoke_test_jax.py. It prints a table. All environments get the
# same files.
#
# Usage: tools/try_tf_versions.sh [VERSION | jax ...]
# It keeps the environments (0.8 GB each) in build/tf_versions for next time.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=("$@")
[ $# -gt 0 ] || versions=(2.18.1 2.19.1 2.20.0 2.21.0 jax)
python=${PYTHON:-python3}
folder=$PWD/build/tf_versions
rm -rf "$folder/wheel"
mkdir -p "$folder"

echo "Building the wheel"
"$python" -m pip wheel -q --no-deps -w "$folder/wheel" .
wheel=$(echo "$folder"/wheel/hvd_keras-*.whl)
echo "$(basename "$wheel"), sha256 $(sha256sum "$wheel" | cut -c 1-16)"

# Installs the wheel and TensorFlow $1, or JAX, and runs the smoke test.
try_version() {
  local venv=$folder/$1 package=tensorflow-cpu==$1 script=smoke_test.py
  if [ "$1" = jax ]; then
    package=jax
    script=smoke_test_jax.py
    export KERAS_BACKEND=jax
  fi
  [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv" || return
  "$venv/bin/pip" install -q --disable-pip-version-check \
    "$package" "$wheel" || return
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps \
    --force-reinstall "$wheel" || return
  # Builds the shim with this TensorFlow's headers and loads it. Running it
  # takes a GPU.
  [ "$1" = jax ] ||
    (cd "$folder" && "$venv/bin/python" -m hvd_keras.gpu_shim) || return
  # From another folder, so that Python imports the wheel, not the sources.
  (cd "$folder" &&
    timeout 300 "$venv/bin/python" -m hvd_keras.run -np 2 -- \
      "$venv/bin/python" "$OLDPWD/tools/$script")
}

failed=0
table=$(printf '%-12s %-8s %-8s %s' TensorFlow Keras numpy result)
for version in "${versions[@]}"; do
  echo "Trying $version"
  log=$folder/$version.log
  if (try_version "$version") > "$log" 2>&1; then
    result=ok
  else
    result="FAILED, see $log"
    failed=1
    tail -n 30 "$log"
  fi
  found=$("$folder/$version/bin/python" -c "from importlib.metadata import version
print(f'{version(\"keras\"):8} {version(\"numpy\"):8}')") || found='?        ?'
  table+=$(printf '\n%-12s %s %s' "$version" "$found" "$result")
done
printf '\n%s\n' "$table"
exit "$failed"
