#!/usr/bin/env bash
# restart.sh NAME: kill -9 one component of the node (apiserver, controllers, kubelet, …) and start it again as it was.
set -euo pipefail
. "$(dirname "$0")/node.sh"
export PATH=$NODE_BIN:/usr/sbin:/sbin:$PATH KUBECONFIG=$DATA/pki/admin.kubeconfig
[ -e "$RUN/$1.command" ] || fail "no component called $1; there are: $(cd $RUN && ls ./*.command | xargs -n1 basename -s .command | xargs)"
pid=$(cat "$RUN/$1.pid")
kill -9 "$pid" 2>/dev/null || true
# Its port is free once its last thread has ended; nobody may reap it, and its memory goes before its sockets.
lives() { [ "$(ls "/proc/$pid/task" 2>/dev/null | wc -l)" -gt 1 ] || grep -qs '^State:.[^ZX]' "/proc/$pid/status"; }
while lives; do sleep 0.02; done
sleep "${2:-0}"
eval "start $1 $(cat "$RUN/$1.command")"
