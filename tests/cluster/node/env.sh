#!/usr/bin/env bash
# env.sh: print the shell lines that point at the node: eval "$(tests/cluster/node/env.sh)"; inside kubectl get pods -A
. "$(dirname "$0")/node.sh"
cat <<E
export KUBECONFIG=$DATA/pki/admin.kubeconfig PATH=$NODE_BIN:\$PATH
export RES_OPTIONS="timeout:1 attempts:1"      # inside, no name server answers
inside() { nsenter --net=/run/netns/$NS "\$@"; }
E
