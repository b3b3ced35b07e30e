#!/usr/bin/env bash
# next.sh: print the commands from a fresh node to the first token; each works as pasted, from the repository's root.
. "$(dirname "$0")/node.sh"
[ "$NS" = wisp-node ] || echo "export WISP_NODE=$NS"
cat <<'E'
eval "$(tests/cluster/node/env.sh)"            # KUBECONFIG, PATH, and `inside`: whatever talks to the node runs inside it
inside helm install wisp charts/wisp --namespace wisp-system --create-namespace --values tests/cluster/values.yaml --wait
tests/cluster/node/example.sh | inside kubectl apply -f -    # SmolLM2 from a folder of the node, which has no way out
(inside kubectl port-forward --namespace wisp-system service/wisp-gateway 8080:80 >/dev/null &)
inside kubectl wait --for=condition=Ready imodel/smollm2     # Ready and asleep: the first request wakes it
inside curl --no-progress-meter --retry 5 --retry-connrefused http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
  -d '{"model": "smollm2", "temperature": 0, "max_tokens": 40, "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
inside kubectl get imodel
make cluster-down                              # when you are done
E
