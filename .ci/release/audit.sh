#!/usr/bin/env bash
# audit.sh: look up every pinned version in PyPI's advisories; fail on a known vulnerability, or where one cannot be looked up.
# Runs in the environment of .ci/requirements/release.txt, or with PIP_AUDIT naming another pip-audit.
set -euo pipefail
cd "$(dirname "$0")/../.."
failed=
for lock in .ci/requirements/*.txt; do
  echo "$lock" >&2
  ${PIP_AUDIT:-pip-audit} --strict --disable-pip --require-hashes --progress-spinner off -r "$lock" || failed="$failed $lock"
done
[ -z "$failed" ] || { echo "audit.sh: not clean:$failed. Raise what is named (make lock UPGRADE=1)." >&2; exit 1; }
