"""Weights from an image, and from a hub that wants a token: applied, fetched, answered."""

import subprocess
import sys

import pytest
from kube import NODE_RUN, apply, condition, kubectl, model, status, until
from namespaces import CLAIM, make_namespace, put_weights, restricted_pod, run_pod
from release import HERE, answer, chat
from tiny import write_tiny

NAMESPACE, TOKEN = "wisp-sources", "hf_only-this-opens-it"
IMAGE = "wisp.test/tiny-weights:1"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def tiny(clients, tmp_path_factory):
    """The namespace, and a folder with the model."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder)
    make_namespace(NAMESPACE)
    yield folder
    kubectl("delete", "imodel", "--all", "-n", NAMESPACE)


@pytest.fixture
def image(tiny):
    """An image that holds nothing but the model, on the node."""
    socket = NODE_RUN / "containerd.sock"
    if not socket.exists():
        pytest.skip(f"only tests/cluster/node can be given the image {IMAGE}")
    for name in FILES:
        (tiny / name).chmod(0o644)  # an image keeps the owner, root, and the model runs as 65532
    archive = tiny.parent / "weights.tar"
    pairs = [f"{tiny / name}=/{name}" for name in FILES]
    subprocess.run([sys.executable, str(HERE / "node/image.py"), archive, IMAGE, "/none", *pairs], check=True)
    load = ["ctr", "-a", socket, "-n", "k8s.io", "images", "import", archive]
    subprocess.run(load, check=True, capture_output=True)
    return IMAGE


@pytest.fixture
def hub(tiny):
    """A hub in a pod that answers only to TOKEN, and the Secret that has it; gives the hub's address."""
    put_weights(NAMESPACE, tiny=tiny)
    script = (HERE.parents[1] / "tests/runtime/support/hub_server.py").read_text()
    url = f"http://hub.{NAMESPACE}.svc"
    spec = {"selector": {"app": "hub"}, "ports": [{"port": 80, "targetPort": 8000}]}
    apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hub"},
            "data": {"hub_server.py": script},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hub"},
            "stringData": {"HF_TOKEN": TOKEN},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": spec},
        namespace=NAMESPACE,
    )
    serve = ["python3", "/scripts/hub_server.py", "acme/tiny=/weights/tiny", "--token", TOKEN]
    command = [*serve, "--host", "0.0.0.0", "--port", "8000", "--storage", url]
    volumes = [
        {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM}},
        {"name": "scripts", "configMap": {"name": "hub"}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    run_pod(
        NAMESPACE,
        restricted_pod("hub", command, volumes=volumes, mounts=mounts, labels={"app": "hub"}, port=8000),
    )
    return url


def test_a_model_in_an_image_is_mounted_and_answers(image):
    apply(model("image", model={"uri": f"oci://{image}"}, replicas=1), namespace=NAMESPACE)
    until(lambda: status("image", NAMESPACE).get("state") == "Ready")
    code, found = answer("/v1/chat/completions", chat(f"{NAMESPACE}/image", max_tokens=4))
    assert (code, found["usage"]["completion_tokens"]) == (200, 4)


def test_a_model_of_a_hub_is_fetched_with_the_token_of_its_secret(hub):
    endpoint = {"env": [{"name": "HF_ENDPOINT", "value": hub}]}
    fields = {"runtime": endpoint, "cache": {"type": "None"}, "replicas": 1}
    apply(
        model("open", model={"uri": "hf://acme/tiny", "secretRef": {"name": "hub"}}, **fields),
        model("closed", model={"uri": "hf://acme/tiny"}, **fields),
        namespace=NAMESPACE,
    )
    until(lambda: status("open", NAMESPACE).get("state") == "Ready")
    code, found = answer("/v1/chat/completions", chat(f"{NAMESPACE}/open", max_tokens=4))
    assert (code, found["usage"]["completion_tokens"]) == (200, 4)
    until(lambda: condition("closed", "Ready", NAMESPACE)[1] == "ModelNotFound")
