#!/usr/bin/env bash
# run.sh [PYTEST-ARGUMENT…]: the clients that people have, unmodified, against our server; `make test-clients` calls it.
# They are installed into an environment of their own: none of it is ours.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../own_environment.sh"
export LITELLM_LOCAL_MODEL_COST_MAP=True  # LiteLLM reads a list from the network otherwise
run_suite "$here" clients "$@"
