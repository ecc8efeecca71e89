"""deploy/kubernetes: the checker of manifests; the containers as processes, with their config, secrets and probes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.harness import eventually, free_port, own_server
from tests.support.programs import ROOT, Process

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.31", "1.34", "1.37")
pytestmark = pytest.mark.full


def manifests(words: dict[str, str]) -> list[dict[str, Any]]:
    """All manifests, with other words."""
    yaml = pytest.importorskip("yaml")
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        text = file.read_text()
        for word, other in words.items():
            text = text.replace(word, other)
        found += list(yaml.safe_load_all(text))
    return found


def workloads(words: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The manifests that run containers, by name."""
    return {one["metadata"]["name"]: one for one in manifests(words) if "template" in one.get("spec", {})}


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_key(version: str) -> None:
    checker = pytest.importorskip("kubernetes_validate")
    every = manifests({})
    assert {one["kind"] for one in every} >= {"ConfigMap", "Service", "StatefulSet", "Deployment"}
    for one in every:
        checker.validate(one, version, strict=True)


def test_pods_are_restricted_and_have_time_to_stop() -> None:
    pods = {name: one["spec"]["template"]["spec"] for name, one in workloads({}).items()}
    assert set(pods) == {"storehooks-web", "storehooks-worker", "storehooks-console"}
    for name, pod in pods.items():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["terminationGracePeriodSeconds"] >= (15 if name.endswith("console") else 40)
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted - {volume["name"] for volume in pod["volumes"]} == ({"data"} if name.endswith("web") else set())


class Cluster:
    """The containers of the manifests as processes of the test."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.ports = {8000: free_port(), 8001: free_port()}
        self.secrets = {"redis-url": redis_url, "console-password": "a long password", "north.secret": "of north"}
        words = {path: str(folder / path[1:]) for path in ("/etc/storehooks", "/run/secrets", "/var/lib/storehooks")}
        for old, new in self.ports.items():
            words |= {f"0.0.0.0:{old}": f"127.0.0.1:{new}", f"127.0.0.1:{old}": f"127.0.0.1:{new}"}
        self.containers: dict[str, dict[str, Any]] = {}
        (config,) = (one for one in manifests(words) if one["kind"] == "ConfigMap")
        self._write("etc/storehooks", config["data"])
        for one in workloads(words).values():
            (container,) = one["spec"]["template"]["spec"]["containers"]
            self.containers[container["name"]] = container
        self._write("run/secrets/storehooks", self.secrets)
        self.processes: dict[str, Process] = {}

    def _write(self, folder: str, files: dict[str, str]) -> None:
        (self.folder / folder).mkdir(parents=True)
        for name, text in files.items():
            (self.folder / folder / name).write_text(text)

    def environ(self, name: str) -> dict[str, str]:
        return {
            one["name"]: one.get("value") or self.secrets[one["valueFrom"]["secretKeyRef"]["key"]]
            for one in self.containers[name]["env"]
        }

    def command(self, words: list[str]) -> list[str]:
        program, *rest = words
        assert program == "storehooks"
        return [sys.executable, "-m", "storehooks", *rest]

    def start(self, name: str) -> None:
        command = self.command(self.containers[name]["command"])
        log = self.folder / f"{name}.log"
        self.processes[name] = Process(command, log=log, env=self.environ(name))

    def probe(self, name: str, kind: str) -> bool:
        """Whether the container passes its probe."""
        assert self.processes[name].alive, self.processes[name].output()
        probe = self.containers[name][kind]
        if "exec" in probe:
            command = self.command(probe["exec"]["command"])
            environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **self.environ(name)}
            return subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0
        (port,) = (one["containerPort"] for one in self.containers[name]["ports"])
        get = probe["httpGet"]
        headers = {one["name"]: one["value"] for one in get.get("httpHeaders", [])}
        try:
            answer = httpx2.get(f"http://127.0.0.1:{self.ports[port]}{get['path']}", headers=headers)
        except httpx2.HTTPError:
            return False
        return answer.status_code < 400

    def close(self) -> None:
        for process in self.processes.values():
            process.stop(40)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always") as server:
        running = Cluster(tmp_path, server.url)
        try:
            yield running
        finally:
            running.close()


@pytest.mark.timeout(300)
def test_the_containers_start_and_pass_their_probes(cluster: Cluster) -> None:
    for name in ("web", "worker", "console"):
        cluster.start(name)
    for name, kinds in {
        "web": ("readinessProbe", "livenessProbe"),
        "worker": ("livenessProbe",),
        "console": ("readinessProbe",),
    }.items():
        for kind in kinds:
            eventually(lambda name=name, kind=kind: cluster.probe(name, kind), 60, what=f"{kind} of {name}")
