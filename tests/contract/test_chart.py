"""Rendered chart: objects that agree with the programs they start, and sufficient rights."""

import base64
import json
import re
from pathlib import Path

import pytest
from rendered_chart import CHART, ROOT, helm, needs_helm, rendered

from wisp_gateway.main import main as gateway_main
from wisp_operator.cluster.access.kinds import KINDS
from wisp_operator.core.access.policy import ENVIRONMENT
from wisp_operator.desired.labels import MODEL_LABEL, RUNTIME_PORT
from wisp_operator.main import main as operator_main

CRD = ROOT / "crds/inferencemodels.yaml"
RIGHTS = {
    "read": {"get", "list", "watch"},
    "watch": {"list", "watch"},
    "apply": {"list", "watch", "create", "patch"},
}

EVERYTHING = (
    "nodeCache.prepare=true",
    "operator.markIdlePods=true",
    "monitoring.serviceMonitor=true",
    "monitoring.dashboard=true",
    "monitoring.alerts.enabled=true",
    "priorityClass.create=true",
    "gateway.autoscaling.enabled=true",
    'gateway.apiKeysSecret="keys"',
    'images.pullSecrets=["pull"]',
    'networkPolicy.metricsNamespace="monitoring"',
    'networkPolicy.gatewayFrom=[{"podSelector": {}}]',
)


def pod_of(document):
    return document["spec"]["template"]["spec"]


def container_of(document):
    return pod_of(document)["containers"][0]


def rules_of(document):
    """{(group, resource): verbs} of a role."""
    found = {}
    for rule in document["rules"]:
        for resource in rule["resources"]:
            key = (rule["apiGroups"][0], resource)
            found[key] = found.get(key, set()) | set(rule["verbs"])
    return found


@needs_helm
def test_helm_finds_nothing_to_complain_about():
    helm("lint", str(CHART), "--strict")


@needs_helm
def test_the_crd_of_the_chart_is_the_one_of_crds_and_outlives_the_release():
    lines = helm(
        "template", "wisp", str(CHART), "--show-only", "templates/crd-inferencemodels.yaml"
    ).splitlines()
    ours = [
        line for line in lines if line not in ("---", "# Source: wisp/templates/crd-inferencemodels.yaml")
    ]
    keep = ["  annotations:", "    helm.sh/resource-policy: keep"]
    at = ours.index(keep[0])
    assert ours[at : at + 2] == keep
    assert "\n".join(ours[:at] + ours[at + 2 :]).strip() == CRD.read_text().strip()
    assert ours[at - 1] == "metadata:"


def test_the_charts_copy_of_the_crd_is_the_crd():
    """And no link, for which helm prints a line at every command."""
    copy = CHART / "files/inferencemodels.yaml"
    assert not copy.is_symlink()
    assert copy.read_text() == CRD.read_text(), (
        "run the command of docs/inferencemodel.md: it copies the CRD, too"
    )


@needs_helm
def test_helm_says_nothing_of_its_own():
    assert helm("template", "wisp", str(CHART), check=False).stderr == ""


@needs_helm
def test_a_packaged_chart_holds_the_crd_itself(tmp_path):
    helm("package", str(CHART), "--destination", str(tmp_path))
    package = str(next(tmp_path.glob("wisp-*.tgz")))
    assert "name: inferencemodels.wisp.dev" in helm("template", "wisp", package)


@needs_helm
def test_the_crd_can_be_left_to_others():
    assert "CustomResourceDefinition/inferencemodels.wisp.dev" not in rendered("crd.install=false")


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_arguments_are_ones_that_the_programs_read(settings):
    for name, program in (("operator", operator_main), ("gateway", gateway_main)):
        arguments = container_of(rendered(*settings)[f"Deployment/wisp-{name}"])["args"]
        program.make_context(name, list(arguments))
        flags = [argument.partition("=")[0] for argument in arguments]
        assert len(flags) == len(set(flags))


@needs_helm
@pytest.mark.parametrize(
    ("setting", "component", "flag", "expect"),
    [
        ('images.runtime.tag="1-cpu"', "operator", "runtime_image", "ghcr.io/wisp-dev/wisp-runtime:1-cpu"),
        ('images.registry=""', "operator", "runtime_image", "wisp-dev/wisp-runtime:0.1.0"),
        (
            f'images.runtime.digest="sha256:{"a" * 64}"',  # a digest outranks the tag
            *("operator", "runtime_image", f"ghcr.io/wisp-dev/wisp-runtime@sha256:{'a' * 64}"),
        ),
        ('images.pullPolicy="Never"', "operator", "runtime_pull_policy", "Never"),
        ("runtime.userId=1000", "operator", "runtime_user_id", 1000),
        ("runtime.cpu=2", "operator", "runtime_cpu", "2"),  # a number is as good as a string
        ('nodeCache.path="/data"', "operator", "node_cache_dir", "/data"),
        ('runtime.hubEndpoint="http://hub:1"', "operator", "hub_endpoint", "http://hub:1"),
        ('runtime.claimStorageClass="fast"', "operator", "claim_storage_class", "fast"),
        ("operator.leaseSeconds=20", "operator", "renew_s", 5.0),
        ("crd.install=true", "operator", "gateway_url", "http://wisp-gateway.wisp-system.svc"),
        ("gateway.service.port=8000", "operator", "gateway_url", "http://wisp-gateway.wisp-system.svc:8000"),
        ('gateway.publicUrl="https://llm.example.com"', "operator", "gateway_url", "https://llm.example.com"),
        ("crd.install=true", "gateway", "demand_url", "http://wisp-operator.wisp-system.svc:8081/demand"),
        ("gateway.maxBodyBytes=67108864", "gateway", "max_body_bytes", 67108864),  # not 6.7e+07
        ("gateway.maxHeldBytes=67108864", "gateway", "max_held_bytes", 67108864),
        ('gateway.allowOrigins=["https://a.example"]', "gateway", "allow_origin", ("https://a.example",)),
        ("gateway.drainTimeoutSeconds=7", "gateway", "drain_timeout_s", 7.0),
        ("crd.install=true", "gateway", "directory", "kubernetes"),
        ('gateway.apiKeysSecret="keys"', "gateway", "api_keys", Path("/etc/wisp/keys/keys")),
        ("crd.install=true", "gateway", "pod_token_keys", Path("/etc/wisp/tokens/keys")),
        ("crd.install=true", "operator", "pod_token_keys", Path("/etc/wisp/tokens/keys")),
        ("crd.install=true", "operator", "allow_env", ",".join(ENVIRONMENT)),  # values.yaml shows the default
        ('policy.env=["FAKE_*","A"]', "operator", "allow_env", "FAKE_*,A"),
        ("crd.install=true", "operator", "allow_file_below", ""),
        ('policy.fileDirectories=["/srv","/mnt/m"]', "operator", "allow_file_below", "/srv,/mnt/m"),
        ("policy.ociModels=false", "operator", "allow_oci", False),
        ("crd.install=true", "operator", "allow_env_secrets", False),
        ("policy.envSecretRefs=true", "operator", "allow_env_secrets", True),
        ("podTokens.enabled=false", "gateway", "pod_token_keys", None),
        ("podTokens.enabled=false", "operator", "pod_token_keys", None),
    ],
)
def test_values_reach_the_program_they_are_for(setting, component, flag, expect):
    arguments = container_of(rendered(setting)[f"Deployment/wisp-{component}"])["args"]
    program = {"operator": operator_main, "gateway": gateway_main}[component]
    assert program.make_context(component, list(arguments)).params[flag] == expect


@needs_helm
def test_operator_and_gateway_derive_tokens_from_one_secret_that_outlives_the_release():
    def mounted(found, name):
        volumes = {volume["name"]: volume for volume in pod_of(found[f"Deployment/wisp-{name}"])["volumes"]}
        return volumes["token-keys"]["secret"]["secretName"]

    found = rendered()
    secret = found["Secret/wisp-tokens"]
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert len(base64.b64decode(secret["data"]["keys"])) >= 32
    assert {mounted(found, name) for name in ("operator", "gateway")} == {"wisp-tokens"}
    theirs = rendered('podTokens.existingSecret="mine"')
    assert "Secret/wisp-tokens" not in theirs
    assert {mounted(theirs, name) for name in ("operator", "gateway")} == {"mine"}


@needs_helm
def test_a_value_that_nobody_reads_does_not_exist():
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    indirect = {"operator", "runtime", "gateway"}  # wisp.image and wisp.pod index by component
    schema = json.loads((CHART / "values.schema.json").read_text())
    for group, below in schema["properties"].items():
        for key in set(below.get("properties", ())) - indirect:
            assert re.search(rf"\b{group}\.{key}\b|\$values\.{key}\b|\$image\.{key}\b", templates), (
                f"{group}.{key}"
            )


@needs_helm
def test_a_release_of_some_namespaces_has_the_same_rights_there_and_nothing_of_the_cluster():
    narrow = rendered('watchNamespaces=["team"]', "crd.install=false", "operator.limitWrites=false")
    everywhere = rendered()
    for component in ("operator", "gateway"):
        role = narrow[f"Role/wisp-{component}-models"]
        binding = narrow[f"RoleBinding/wisp-{component}-models"]
        assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "team"
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        wide = rules_of(everywhere[f"ClusterRole/wisp-{component}"])
        bound = everywhere[f"ClusterRoleBinding/wisp-{component}"]
        assert (bound["roleRef"]["name"], bound["subjects"]) == (f"wisp-{component}", binding["subjects"])
        assert rules_of(role) == {key: verbs for key, verbs in wide.items() if key != ("", "nodes")}
    assert {document["metadata"].get("namespace") for document in narrow.values()} == {"wisp-system", "team"}
    assert "--watch-namespaces=team" in container_of(narrow["Deployment/wisp-operator"])["args"]
    assert "--namespace=team" in container_of(narrow["Deployment/wisp-gateway"])["args"]


@needs_helm
@pytest.mark.parametrize(("marks", "pods"), [("false", set()), ("true", {"patch"})])
def test_the_operator_may_do_what_it_does_and_nothing_else(marks, pods):
    rules = rules_of(rendered(f"operator.markIdlePods={marks}")["ClusterRole/wisp-operator"])
    read_only = {"InferenceModel": "watch", "Node": "watch"}
    expect = {
        ("wisp.dev", "inferencemodels/status"): {"patch"},
        ("wisp.dev", "inferencemodels/finalizers"): {"update"},
        ("", "events"): {"list"},
        ("events.k8s.io", "events"): {"create"},
    }
    for kind in KINDS.values():
        is_deleted = kind.is_pruned or kind.name == "Service"  # to be made again without an address
        verbs = RIGHTS[read_only.get(kind.name, "apply")] | ({"delete"} if is_deleted else set())
        expect[(kind.selector[0], kind.plural)] = verbs
    expect[("", "pods")] = {"list", "watch"} | pods  # made by Deployments, told which goes first
    assert rules == expect


@needs_helm
def test_the_operator_holds_one_lease_of_its_own_namespace():
    role = rendered()["Role/wisp-operator"]
    assert role["metadata"]["namespace"] == "wisp-system"
    by_name = [rule for rule in role["rules"] if rule["verbs"] != ["create"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in by_name] == [
        (["wisp-operator"], ["get", "update"])
    ]
    # Part of the release, so that uninstalling leaves none behind.
    assert "Lease/wisp-operator" in rendered()


@needs_helm
@pytest.mark.parametrize(
    ("name", "switch"), [("operator", "markIdlePods"), ("operator-objects", "limitWrites")]
)
def test_an_admission_policy_says_of_the_operators_account_what_roles_cannot(name, switch):
    found = rendered(f"operator.{switch}=true", 'policy.fileDirectories=["/srv/models"]')
    policy = found[f"ValidatingAdmissionPolicy/wisp-{name}"]["spec"]  # tests/attacks/operator tries it
    account = "'system:serviceaccount:wisp-system:wisp-operator'"
    assert policy["matchConditions"][0]["expression"] == f"request.userInfo.username == {account}"
    assert '"/srv/models"' in str(policy["variables"]) or name == "operator"
    binding = found[f"ValidatingAdmissionPolicyBinding/wisp-{name}"]["spec"]
    assert binding == {"policyName": f"wisp-{name}", "validationActions": ["Deny"]}
    assert f"ValidatingAdmissionPolicy/wisp-{name}" not in rendered(f"operator.{switch}=false")


@needs_helm
def test_the_gateway_reads_the_secrets_that_are_listed_and_no_others():
    assert ("", "secrets") not in rules_of(rendered()["ClusterRole/wisp-gateway"])
    found = rendered('gateway.modelSecrets={"team": ["chat-keys", "more"]}')
    role, binding = found["Role/wisp-gateway"], found["RoleBinding/wisp-gateway"]
    assert [role["metadata"]["namespace"], binding["metadata"]["namespace"]] == ["team", "team"]
    (rule,) = role["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])
    assert rule["resourceNames"] == ["chat-keys", "more"]
    assert binding["subjects"][0]["namespace"] == "wisp-system"


@needs_helm
@pytest.mark.parametrize(("reads", "secrets"), [("true", {"get"}), ("false", None)])
def test_the_gateway_only_reads(reads, secrets):
    rules = rules_of(rendered(f"gateway.readModelSecrets={reads}")["ClusterRole/wisp-gateway"])
    assert rules.pop(("", "secrets"), None) == secrets  # by name, never listed
    assert rules == {
        ("wisp.dev", "inferencemodels"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
    }


@needs_helm
def test_the_gateways_metrics_have_a_port_that_its_clients_service_does_not_show():
    found = rendered("monitoring.serviceMonitor=true", 'networkPolicy.metricsNamespace="prometheus"')
    [monitored] = found["ServiceMonitor/wisp-gateway"]["spec"]["endpoints"]
    assert monitored["port"] == "metrics"
    assert [port["name"] for port in found["Service/wisp-gateway"]["spec"]["ports"]] == ["http"]
    assert [port["name"] for port in found["Service/wisp-gateway-metrics"]["spec"]["ports"]] == ["metrics"]
    [container] = pod_of(found["Deployment/wisp-gateway"])["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert f"--metrics-port={ports['metrics']}" in container["args"]
    from_clients, from_prometheus = found["NetworkPolicy/wisp-gateway"]["spec"]["ingress"]
    assert (from_clients["ports"][0]["port"], "from" in from_clients) == ("http", False)
    assert from_prometheus["ports"][0]["port"] == "metrics"
    assert "namespaceSelector" in from_prometheus["from"][0]


@needs_helm
@pytest.mark.parametrize("component", ["operator", "gateway"])
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_pods_meet_the_restricted_pod_security_standard(component, settings):
    pod = pod_of(rendered(*settings)[f"Deployment/wisp-{component}"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
    for container in pod["containers"]:
        given_up = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["securityContext"] == given_up
        assert not any("hostPort" in port for port in container["ports"])


@needs_helm
def test_only_the_node_cache_that_was_asked_for_starts_as_root():
    assert not [key for key in rendered() if key.startswith("DaemonSet")]
    pod = pod_of(rendered(*EVERYTHING)["DaemonSet/wisp-nodecache"])
    capabilities = pod["initContainers"][0]["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert pod["containers"][0]["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False


@needs_helm
@pytest.mark.parametrize(("delay", "drain"), [(5, 120), (0, 0), (30, 3600)])
def test_a_gateway_has_the_time_to_drain(delay, drain):
    found = rendered(f"gateway.shutdownDelaySeconds={delay}", f"gateway.drainTimeoutSeconds={drain}")
    assert pod_of(found["Deployment/wisp-gateway"])["terminationGracePeriodSeconds"] > delay + drain


@needs_helm
@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_services_budgets_and_policies_select_the_pods_of_their_deployment(component):
    found, name = rendered(*EVERYTHING), f"wisp-{component}"
    labels = found[f"Deployment/{name}"]["spec"]["template"]["metadata"]["labels"].items()
    service = found[f"Service/{name}"]
    assert service["spec"]["selector"].items() <= labels
    assert found[f"PodDisruptionBudget/{name}"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert found[f"NetworkPolicy/{name}"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    monitor = found[f"ServiceMonitor/{name}"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in container_of(found[f"Deployment/{name}"])["ports"]}
    assert {service["spec"]["ports"][0]["targetPort"], monitor["endpoints"][0]["port"]} <= ports


@needs_helm
def test_the_operator_s_name_stands_for_each_replica_so_that_gateways_tell_all():
    service, deployment = rendered()["Service/wisp-operator"], rendered()["Deployment/wisp-operator"]
    assert service["spec"]["clusterIP"] == "None"
    # Nothing translates ports of a headless Service.
    assert service["spec"]["ports"][0]["port"] == container_of(deployment)["ports"][0]["containerPort"]


@needs_helm
def test_one_replica_has_no_budget_that_would_keep_a_node_from_draining():
    assert "PodDisruptionBudget/wisp-gateway" not in rendered("gateway.replicas=1")


@needs_helm
def test_the_gateway_may_reach_the_pods_of_models():
    egress = rendered()["NetworkPolicy/wisp-gateway"]["spec"]["egress"]
    to = egress[0]["to"][0]
    assert egress[0]["ports"] == [{"port": RUNTIME_PORT, "protocol": "TCP"}]
    assert to["podSelector"]["matchExpressions"] == [{"key": MODEL_LABEL, "operator": "Exists"}]


@needs_helm
def test_every_object_is_in_the_namespace_of_the_release_and_says_whose_it_is():
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "PriorityClass", "CustomResourceDefinition"}
    cluster_wide |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    for document in rendered(*EVERYTHING).values():
        if document["kind"] not in cluster_wide:
            assert document["metadata"]["namespace"] == "wisp-system"
        if document["kind"] != "CustomResourceDefinition":
            assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "wisp"


@needs_helm
@pytest.mark.parametrize(
    ("release", "expect"),
    [("wisp", "wisp-gateway"), ("my-wisp", "my-wisp-gateway"), ("llm", "llm-wisp-gateway"), ("a" * 53, None)],
)
def test_names_come_from_the_release_and_fit_a_service(release, expect):
    names = {key.partition("/")[2] for key in rendered(release=release) if key.startswith("Service/")}
    assert expect is None or expect in names
    assert all(len(name) <= 63 for name in names)
