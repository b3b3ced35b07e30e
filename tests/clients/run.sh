#!/usr/bin/env bash
# run.sh [PYTEST-ARGUMENT…]: the clients that people have, unmodified, against our server; `make test-clients` calls it.
# They are installed into an environment of their own, kept in the cache by the lock's digest: none of it is ours.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
lock=$root/.ci/requirements/clients.txt
export SERVER_PYTHON=${SERVER_PYTHON:-$root/.venv/bin/python}
export LITELLM_LOCAL_MODEL_COST_MAP=True  # LiteLLM reads a list from the network otherwise
venv=${XDG_CACHE_HOME:-$HOME/.cache}/wisp/clients-$(sha256sum "$lock" | cut -c1-12)

if [ ! -e "$venv/done" ]; then
  "$SERVER_PYTHON" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
  touch "$venv/done"
fi
cd "$here"
exec "$venv/bin/python" -m pytest -c pytest.ini --rootdir . --confcutdir . "$@"
