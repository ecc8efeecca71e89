"""The proxies of deploy/ in front of web processes, with TLS by a private CA: their files, with other addresses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.harness import eventually
from tests.support.programs import ROOT, Process

DEPLOY = ROOT / "deploy"
NAME = "hooks.example.com"
WEB = "127.0.0.1:8000"
NGINX = """daemon off;
{user}
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    {temporary}
    include {conf};
}}
"""
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class PrivateCa:
    """A certificate authority of the test, and a certificate for 127.0.0.1 that it signed."""

    def __init__(self, folder: Path) -> None:
        if not shutil.which("openssl"):
            pytest.skip("openssl is not installed")
        self.folder = folder
        self.ca, self.certificate, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        authority = folder / "ca.key"
        make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        subject = ["-subj", "/CN=a private CA", "-addext", "basicConstraints=critical,CA:TRUE"]
        _openssl(*make, *subject, "-addext", "keyUsage=keyCertSign", "-keyout", authority, "-out", self.ca)
        signed_by = ["-CA", self.ca, "-CAkey", authority]
        names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=IP:127.0.0.1,DNS:{NAME}"]
        leaf = ["-addext", "basicConstraints=critical,CA:FALSE"]
        _openssl(*make, *signed_by, *names, *leaf, "-keyout", self.key, "-out", self.certificate)
        self.both = folder / "both.pem"
        self.both.write_text(self.certificate.read_text() + self.key.read_text())


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def start_proxy(name: str, folder: Path, ca: PrivateCa, *, port: int, web: str, ipv6: bool = False) -> Process:
    """Start nginx, caddy or haproxy on the port, in front of the web process at an address."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    listen = [f"127.0.0.1:{port}", *([f"[::1]:{port}"] if ipv6 else [])]
    command, env = {"nginx": _nginx, "caddy": _caddy, "haproxy": _haproxy}[name](folder, ca, listen, web)
    return _started(name, folder, command, env, port)


def start_nginx(folder: Path, text: str, *, port: int) -> Process:
    """Start nginx with other servers than that of deploy/; one must listen on the port."""
    return _started("nginx", folder, _nginx_command(folder, text), {}, port)


def _started(name: str, folder: Path, command: list[str], env: dict[str, str], port: int) -> Process:
    proxy = Process(command, log=folder / f"{name}.log", env=env)
    eventually(lambda: _listens(port) or not proxy.alive, 20, what=f"{name} listens")
    assert proxy.alive, proxy.output()
    return proxy


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def filled_in(file: Path, words: dict[str, str]) -> str:
    """The file with other words, each of which it must have."""
    text = file.read_text()
    for word, other in words.items():
        assert word in text, f"{file} has no {word}"
        text = text.replace(word, other)
    return text


def _nginx(folder: Path, ca: PrivateCa, listen: list[str], web: str) -> tuple[list[str], dict[str, str]]:
    words = {
        "listen 443 ssl;": " ".join(f"listen {address} ssl;" for address in listen),
        WEB: web,
        f"/etc/ssl/certs/{NAME}.pem": str(ca.certificate),
        f"/etc/ssl/private/{NAME}.key": str(ca.key),
    }
    return _nginx_command(folder, filled_in(DEPLOY / "nginx/storehooks.conf", words)), {}


def _nginx_command(folder: Path, text: str) -> list[str]:
    conf = folder / "storehooks.conf"
    conf.write_text(text)
    temporary = " ".join(f"{one}_temp_path {folder}/{one};" for one in TEMPORARY)
    (folder / "nginx.conf").write_text(NGINX.format(user=_user(), folder=folder, temporary=temporary, conf=conf))
    return ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


def _user() -> str:
    """nginx as root would write its files as another user, who may not enter the folder of a test."""
    return "user root;" if os.geteuid() == 0 else ""


def _caddy(folder: Path, ca: PrivateCa, listen: list[str], web: str) -> tuple[list[str], dict[str, str]]:
    site = f"https://{listen[0]} {{\n\tbind 127.0.0.1\n\ttls {ca.certificate} {ca.key}\n"
    options = "\n{\n"
    words = {
        options: f"{options}\tadmin off\n\tauto_https disable_redirects\n",
        f"\n{NAME} {{\n": f"\n{site}",
        "\nhttps:// {\n": f"\nhttps://:{listen[0].rpartition(':')[2]} {{\n\tbind 127.0.0.1\n",
        WEB: web,
    }
    (folder / "Caddyfile").write_text(filled_in(DEPLOY / "caddy/Caddyfile", words))
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    return command, {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


def _haproxy(folder: Path, ca: PrivateCa, listen: list[str], web: str) -> tuple[list[str], dict[str, str]]:
    words = {"bind :443": f"bind {','.join(listen)}", f"/etc/haproxy/certs/{NAME}.pem": str(ca.both), WEB: web}
    (folder / "haproxy.cfg").write_text(filled_in(DEPLOY / "haproxy/haproxy.cfg", words))
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], {}
