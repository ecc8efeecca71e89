"""deploy/docker: the image file, by its linter and as a script in an empty folder; the keys of the compose file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from receiver.config import load
from tests.support.harness import eventually, free_port, own_server
from tests.support.programs import ROOT, Process

FOLDER = ROOT / "deploy/docker"
DOCKERFILE = FOLDER / "Dockerfile"
AS_ANOTHER_USER = {
    "useradd": "#!/bin/sh\n",
    "install": '#!/bin/sh\nexec /usr/bin/install --directory --mode=700 "$5"\n',
}
"""What a test does instead of changing the users of the machine."""


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest


class Build:
    """The image file as a script: its folders are below one of the test, and nothing is isolated."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root
        self.environ = {"PATH": f"{root}/bin:/usr/bin:/bin", "HOME": str(root)}
        self.command: list[str] = []
        self.user = ""
        (root / "bin").mkdir()
        (root / "bin/python").symlink_to(Path(sys.executable).resolve())
        for name, text in AS_ANOTHER_USER.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)

    def follow(self) -> None:
        for name, rest in instructions():
            getattr(self, f"_{name.lower()}")(self.moved(rest))

    def moved(self, text: str) -> str:
        return re.sub(r"(?<![\w/.])/(opt|src|var/lib)\b", rf"{self.root}/\1", text)

    def _from(self, rest: str) -> None:
        self.work = self.root

    def _workdir(self, rest: str) -> None:
        self.work = Path(rest)
        self.work.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        if rest.startswith("--from=build "):
            assert len(set(rest.split()[1:])) == 1, "from one place to the same in the other stage"
            return
        *sources, target = rest.split()
        for source in sources:
            into = self.work / target / source if target == "./" else self.work / target
            into.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)

    def _run(self, rest: str) -> None:
        environ, shell = {**os.environ, **self.environ}, ["/bin/sh", "-ec", rest]
        done = subprocess.run(shell, cwd=self.work, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"

    def _env(self, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            self.environ[name] = value.replace("$PATH", self.environ["PATH"])

    def _user(self, rest: str) -> None:
        self.user = rest

    def _expose(self, rest: str) -> None:
        assert f":{rest}" in self.environ["STOREHOOKS_RECEIVER__BIND"]

    def _cmd(self, rest: str) -> None:
        self.command = json.loads(rest)


def test_the_image_may_copy_what_it_copies() -> None:
    """Its .dockerignore leaves out everything else."""
    *_, names = (FOLDER / "Dockerfile.dockerignore").read_text().split("*\n", 1)
    allowed = {line.removeprefix("!") for line in names.splitlines() if line.startswith("!")}
    copied = {
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    }
    assert copied == allowed


@pytest.mark.full
def test_hadolint_accepts_the_image_file() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_steps_of_the_image_lead_to_a_receiver(tmp_path: Path) -> None:
    build = Build(tmp_path)
    build.follow()
    assert build.user == "10001:10001"
    assert not (tmp_path / "var/lib/storehooks").stat().st_mode & 0o077
    port = free_port()
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server") as server:
        environ = build.environ | {
            "STOREHOOKS_REDIS__URL": server.url,
            "STOREHOOKS_RECEIVER__BIND": f"127.0.0.1:{port}",
            "PYTHONPATH": "",
        }
        program = shutil.which(build.command[0], path=build.environ["PATH"])
        assert program == str(tmp_path / "opt/storehooks/bin/storehooks")
        web = Process([program, *build.command[1:]], log=tmp_path / "web.log", env=environ, cwd=build.work)

        def is_ready() -> bool:
            assert web.alive, web.output()
            try:
                return httpx2.get(f"http://127.0.0.1:{port}/readyz").json()["stores_in"] == "redis"
            except httpx2.HTTPError:
                return False

        try:
            eventually(is_ready, 60, what="web is ready")
        finally:
            web.stop()


@pytest.mark.full
def test_the_compose_file_has_known_keys_and_restricts_its_services(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services, (network,) = compose["services"], compose["networks"]["default"]["ipam"]["config"]
    config = tmp_path / "config.toml"
    config.write_text("")
    for name in ("web", "worker", "console"):
        service = services[name]
        assert service["command"] == ["storehooks", name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["stop_grace_period"] >= "15s"
        environ = {key: re.sub(r"\$\{\w+:\?.*?\}", "given", value) for key, value in service["environment"].items()}
        assert environ.pop("STOREHOOKS_CONFIG") == "/etc/storehooks/config.toml"
        found = load(config, environ)
        assert found.redis.url == "redis://storehooks:given@redis:6379/0"
        assert found.receiver.trusted_proxies == (network["gateway"],)
    build = services["web"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(DOCKERFILE)
    for volume in services["redis"]["volumes"][:1]:
        assert (FOLDER / volume.split(":")[0]).exists()
