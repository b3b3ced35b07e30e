# own_environment.sh: sourced by the run.sh of a suite whose packages are none of the project's (clients, browser).
# It sets SERVER_PYTHON, the interpreter of the servers under test, unless the caller has named one.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export SERVER_PYTHON=${SERVER_PYTHON:-$root/.venv/bin/python}

# run_suite FOLDER LOCK [PYTEST-ARGUMENT…]: run a folder's tests in an environment with the packages of
# .ci/requirements/LOCK.txt, kept in the cache by that file's digest.
run_suite() {
  local folder=$1 lock=$root/.ci/requirements/$2.txt venv
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/wisp/$2-$(sha256sum "$lock" | cut -c1-12)
  shift 2
  if [ ! -e "$venv/done" ]; then
    "$SERVER_PYTHON" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
    touch "$venv/done"
  fi
  cd "$folder"
  exec "$venv/bin/python" -m pytest -c pytest.ini --rootdir . --confcutdir . "$@"
}
