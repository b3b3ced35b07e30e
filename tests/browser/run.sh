#!/usr/bin/env bash
# run.sh [PYTEST-ARGUMENT…]: the gateway's page in headless Chromium; `make test-page` calls it.
# Playwright is installed into an environment of its own; the browser is this machine's, Debian's package if there is
# none yet and this is root. CHROMIUM=PATH names another.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../own_environment.sh"

browser() { command -v chromium || command -v google-chrome || command -v chromium-browser; }

if [ -z "${CHROMIUM:-}" ]; then
  if ! browser >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "run.sh: installing Debian's chromium and a font" >&2
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  fi
  CHROMIUM=$(browser) || { echo "run.sh: no Chromium here. Install it: sudo apt-get install chromium" >&2; exit 1; }
fi
export CHROMIUM
run_suite "$here" page "$@"
