"""What users deploy from: the manifests for Kubernetes and the unit for systemd."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.launch.job_variables import server_list
from hedgerow.launch.rank_info import rank_info

from .kube_shape import breaches

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
UNIT = EXAMPLES / "systemd/hedgerow-ps@.service"


def _documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="SKIPPED: PyYAML is not installed")
    return list(yaml.safe_load_all(path.read_text()))


def _one(name: str, kind: str) -> dict[str, Any]:
    (found,) = [d for d in _documents(EXAMPLES / "kubernetes" / name) if d["kind"] == kind]
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_has_the_fields_of_the_published_types(path: Path) -> None:
    documents = _documents(path)
    assert documents
    for document in documents:
        assert breaches(document) == []


def test_the_check_finds_what_is_wrong() -> None:
    good = _one("servers.yaml", "StatefulSet")
    pod = ("spec", "template", "spec")
    for path, value, told in (
        (("spec", "replica"), 4, "StatefulSet.spec has no field replica"),
        (("spec", "replicas"), "4", "StatefulSet.spec.replicas is '4'"),
        (("spec", "serviceName"), None, "StatefulSet.spec.serviceName is None"),
        ((*pod, "volumes"), {}, "StatefulSet.spec.template.spec.volumes is no list"),
        (("kind",), "Statefulset", "no such type: ('apps/v1', 'Statefulset')"),
    ):
        bad: Any = copy.deepcopy(good)
        place = bad
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert breaches(bad) == [told]
    del good["spec"]["template"]["spec"]["containers"]
    assert breaches(good) == ["StatefulSet.spec.template.spec lacks containers"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_parts_of_a_manifest_know_each_other(path: Path) -> None:
    documents = _documents(path)
    (service,) = [d for d in documents if d["kind"] == "Service"]
    assert service["spec"]["clusterIP"] == "None"
    (work,) = [d for d in documents if d["kind"] in ("StatefulSet", "Job")]
    template = work["spec"]["template"]
    pod = template["spec"]
    volumes = {one["name"] for one in pod["volumes"]}
    volumes |= {one["metadata"]["name"] for one in work["spec"].get("volumeClaimTemplates", [])}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    if work["kind"] == "StatefulSet":
        labels = template["metadata"]["labels"]
        assert work["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
        assert work["spec"]["serviceName"] == service["metadata"]["name"]
    else:
        assert pod["subdomain"] == service["metadata"]["name"] == work["metadata"]["name"]


def test_workers_find_as_many_servers_as_there_are() -> None:
    servers, workers = _one("servers.yaml", "StatefulSet"), _one("workers.yaml", "Job")
    (server,) = servers["spec"]["template"]["spec"]["containers"]
    (worker,) = workers["spec"]["template"]["spec"]["containers"]
    count, name = servers["spec"]["replicas"], servers["metadata"]["name"]
    assert f"--shard=$(SHARD)/{count}" in server["args"]
    told = {one["name"]: one.get("value", "1") for one in worker["env"]}  # RANK comes by index
    found = server_list(environ=told)
    assert found is not None
    assert found.addresses == tuple(f"{name}-{i}.{name}:7000" for i in range(count))
    assert rank_info(environ=told).world_size == workers["spec"]["completions"] == 2


def test_servers_take_the_options_of_the_manifest_and_of_the_unit() -> None:
    (server,) = _one("servers.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"]
    (start,) = [x for x in UNIT.read_text().splitlines() if x.startswith("ExecStart=")]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(program.app, ["ps", "--help"]).stdout
    for option in (*server["args"], *start.split()):
        if option.startswith("--"):
            assert option.split("=")[0] in shown


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="SKIPPED: kubectl is not installed")
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubectl_reads_every_field(path: Path) -> None:
    # Without a cluster kubectl still has its own types; what they do not know is dropped.
    verbs = {"Service": "selector", "StatefulSet": "env", "Job": "env"}
    given = [d for d in _documents(path) if d["kind"] in verbs]
    assert len(given) == 2
    for document in given:
        verb = verbs[document["kind"]]
        command = ["kubectl", "set", verb, "--local", "-f", "-", "a=b", "-o", "json"]
        text = json.dumps(document)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if verb == "selector":
            del document["spec"]["selector"]  # it was replaced
        assert _lost(document, json.loads(done.stdout), document["kind"]) == []


def _lost(given: Any, read: Any, path: str) -> list[str]:
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            lost
            for field, value in given.items()
            for lost in (
                _lost(value, read[field], f"{path}.{field}")
                if field in read
                else [f"{path}.{field}"]
            )
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) <= len(read):
        pairs = zip(given, read, strict=False)  # the variable that was set stands behind
        return [lost for i, pair in enumerate(pairs) for lost in _lost(*pair, f"{path}[{i}]")]
    return [] if given == read else [path]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="SKIPPED: systemd-analyze is not installed"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/hedgerow/bin/hedgerow", sys.executable)
    path = tmp_path / "hedgerow-ps@3.service"
    path.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
