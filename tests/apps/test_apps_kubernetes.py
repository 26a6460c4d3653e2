"""The manifests are valid, hang together, and run what the compose file runs."""

import copy
import re
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from test_apps_compose import SERVICES, options_of

from flower_fedclust.site.policy import SiteSettings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = {
    path.stem: list(yaml.safe_load_all(path.read_text())) for path in sorted(FOLDER.glob("*.yaml"))
}
MANIFESTS = {f"{one['kind']} of {name}": one for name, parts in FILES.items() for one in parts}
PODS = {
    name: one["spec"]["template"]["spec"]
    for name, one in MANIFESTS.items()
    if "template" in one.get("spec", {})
}


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_the_schema_of_kubernetes_and_a_typing_error_does_not(name, version):
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)
    wrong = copy.deepcopy(MANIFESTS[name])
    wrong["metadata"]["nmae"] = wrong["metadata"].pop("name")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize(("name", "service"), [("site", "north"), ("superlink", "superlink")])
def test_a_pod_runs_the_command_that_a_container_of_compose_runs(name, service):
    what, own = options_of(PODS[f"Deployment of {name}"]["containers"][0]["args"])
    same, of_compose = options_of(SERVICES[service]["command"])
    own.pop("--superlink", None), of_compose.pop("--superlink", None)
    assert (what, own) == (same, of_compose)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_few_rights_and_mounts_what_its_command_names(name):
    pod = PODS[name]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    user = pod["securityContext"]
    assert user["runAsNonRoot"]
    assert f"USER {user['runAsUser']}" in (FOLDER.parent / "Containerfile").read_text()
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    for word in container["args"]:
        path = Path(word.partition("=")[2] or word)
        assert not path.is_absolute() or any(
            Path(place) in path.parents for place in mounts.values()
        ), word
    for volume in volumes.values():
        for kind, key, there in (
            ("configMap", "name", "ConfigMap of site-settings"),
            ("persistentVolumeClaim", "claimName", None),
        ):
            if kind in volume:
                named = [
                    one["metadata"]["name"]
                    for at, one in MANIFESTS.items()
                    if at == there or "Claim" in at
                ]
                assert volume[kind][key] in named
        if "secret" in volume:
            said = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
            made = re.search(
                rf"create secret generic {volume['secret']['secretName']}((?:.*\\\n)*.*)", said
            )[1]
            files = {Path(file).name for file in re.findall(r"--from-file=(\S+)", made)}
            needed = {
                Path(word).name
                for word in container["args"]
                if f"={mounts[volume['name']]}/" in word
            }
            assert needed == files
            assert volume["secret"]["defaultMode"] == 0o440  # as `fedclust site --check` wants it


def test_the_settings_of_a_pod_are_valid_and_in_its_volumes():
    config = MANIFESTS["ConfigMap of site-settings"]
    assert (
        PODS["Deployment of site"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    )
    given = tomllib.loads(config["data"]["site.toml"])
    settings = SiteSettings.checked(given, "site.toml", Path("/etc/fedclust"))
    container = PODS["Deployment of site"]["containers"][0]
    mounts = [Path(one["mountPath"]) for one in container["volumeMounts"]]
    assert all(
        any(place in Path(path).parents for place in mounts)
        for path in (settings.data, settings.folder)
    )
    (port,) = container["ports"]
    assert port["containerPort"] == settings.metrics.port
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port["name"]}
    assert "-r site-requirements.txt" in (FOLDER.parent / "Containerfile").read_text()
    assert "\nprometheus-client==" in (FOLDER.parent / "site-requirements.txt").read_text()
    policy = MANIFESTS["NetworkPolicy of site"]["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    (host,) = re.findall(r"--superlink=\S+:(\d+)", " ".join(container["args"]))
    assert {"port": int(host), "protocol": "TCP"} in policy["egress"][0]["ports"]


def test_labels_ports_and_the_first_study_fit():
    for name in ("site", "superlink"):
        of = MANIFESTS[f"Deployment of {name}"]["spec"]
        assert of["selector"]["matchLabels"] == of["template"]["metadata"]["labels"]
        # Two would write to one ledger.
        assert (of["replicas"], of["strategy"]) == (1, {"type": "Recreate"})
    labels = MANIFESTS["Deployment of site"]["spec"]["selector"]["matchLabels"]
    assert MANIFESTS["NetworkPolicy of site"]["spec"]["podSelector"]["matchLabels"] == labels
    policy, limited = (
        MANIFESTS["NetworkPolicy of superlink"]["spec"],
        PODS["Deployment of superlink"]["containers"][0],
    )
    of = MANIFESTS["Deployment of superlink"]["spec"]["selector"]
    assert (policy["podSelector"], policy["egress"]) == (of, [])
    assert {"podSelector": {"matchLabels": labels}} in policy["ingress"][0]["from"]
    assert policy["ingress"][0]["ports"] == [
        {"port": limited["ports"][0]["name"], "protocol": "TCP"}
    ]
    assert "memory" in limited["resources"]["limits"]
    service = MANIFESTS["Service of superlink"]["spec"]
    assert (
        service["selector"]
        == MANIFESTS["Deployment of superlink"]["spec"]["selector"]["matchLabels"]
    )
    _, own = options_of(PODS["Deployment of superlink"]["containers"][0]["args"])
    assert service["ports"][0]["port"] == int(own["--port"])
    settings = SiteSettings.checked(
        tomllib.loads(MANIFESTS["ConfigMap of site-settings"]["data"]["site.toml"]),
        "site.toml",
        Path("/"),
    )
    study = tomllib.loads((FOLDER.parent / "first-study.toml").read_text())
    settings.policy.check_run([study["strategy"]], study["study"])
