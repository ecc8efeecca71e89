"""Listings at a server that others wrote, json-server from npm: complete, or an error that names the key."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from receiver import config as config_room
from tests.support.harness import SECRET, Process, eventually, free_port
from workers.storeapi import Client, client_for_store
from workers.storeapi.errors import UnexpectedResponse
from workers.storeapi.probing import Prober

PACKAGE = "json-server@0.17.4"
PRODUCTS, SIZE, PAGES = 90, 20, 5
STYLES = {
    "page": 'style = "page"\npage_param = "_page"',
    "offset": 'style = "offset"\noffset_param = "_start"',
    # it sends the Link header only if a page is asked for
    "header": 'style = "header"\n[stores.demo.catalogue.products.list]\nparams = { _page = "1" }',
}
ENVELOPES = {
    "bare": 'data = ""\ntotal = "header:X-Total-Count"',
    "documented": 'record = ""',
    "named": 'data = "products"\nrecord = ""\ntotal = "count"',
    "wrapped": 'data = "result.items"\nitem = "product"\nrecord = ""\ntotal = "result.total"',
}
FAULTS = ("short_page", "repeated_page", "changing_total")
COMPLETE = {("offset", "short_page"), ("header", "changing_total")}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="node is missing"),
]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's code is downloaded once into pytest's cache."""
    assert request.config.cache is not None
    folder = Path(request.config.cache.mkdir(PACKAGE.replace("@", "-")))
    if not (folder / "node_modules" / "json-server").exists():
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            pytest.skip(f"node is here, but {PACKAGE} cannot be downloaded: {done.stderr.strip()[-200:]}")
    port, script = free_port(), str(Path(__file__).parent / "json_server.cjs")
    log = tmp_path_factory.mktemp("json-server") / "server.log"
    process = Process(["node", script, str(folder), str(port), str(PRODUCTS)], log=log)
    eventually(lambda: "ready" in process.output(), 20, what="json-server is ready")
    yield f"http://127.0.0.1:{port}"
    process.stop()


def control(server: str, **values: str) -> int:
    """Set the envelope or the fault; return the number of requests so far."""
    return int(httpx2.put(f"{server}/control", json=values).raise_for_status().json()["requests"])


def client(server: str, folder: Path, catalogue: str) -> tuple[Client, config_room.Config]:
    store = f'[stores.demo]\nbase_url = "{server}"\nallow_private = true\nauth = {{ token = "t" }}\n'
    path = folder / "config.toml"
    path.write_text(f'{store}signing_secrets = ["{SECRET}"]\n{catalogue}')
    config = config_room.load(path, {})
    return client_for_store(config, "demo"), config


def catalogue_of(style: str, envelope: str) -> str:
    return (
        f'[stores.demo.catalogue]\nprefix = ""\n[stores.demo.catalogue.envelope]\n{ENVELOPES[envelope]}\n'
        f'[stores.demo.catalogue.paging]\nsize = {SIZE}\nsize_param = "_limit"\n{STYLES[style]}\n'
    )


def walk(server: str, given: Client, fault: str) -> list[int]:
    """The ids of a listing whose second page has a fault."""
    pages = given.products.list().pages()
    ids = [int(one.id) for one in next(pages)]
    control(server, fault=fault)
    try:
        ids += [int(one.id) for one in next(pages)]
    finally:
        control(server, fault="")
    return ids + [int(one.id) for page in pages for one in page]


@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize("style", STYLES)
def test_a_listing_is_complete_or_an_error(server: str, tmp_path: Path, style: str, envelope: str, fault: str) -> None:
    before = control(server, envelope=envelope, fault="")
    given, _ = client(server, tmp_path, catalogue_of(style, envelope))
    if not fault or (style, fault) in COMPLETE:
        assert sorted(walk(server, given, fault)) == list(range(1, PRODUCTS + 1))
    else:
        with pytest.raises(UnexpectedResponse) as caught:
            walk(server, given, fault)
        assert str(caught.value).startswith("products.list at demo: ")
        assert "set\n[stores.demo.catalogue.paging]\nstyle = " in str(caught.value)
    assert control(server) - before <= PAGES + 2


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_the_lines_that_the_probe_proposes_are_enough(server: str, tmp_path: Path, envelope: str) -> None:
    control(server, envelope=envelope, fault="")
    prober = Prober(*client(server, tmp_path, ""))
    prober.run()
    given, _ = client(server, tmp_path, prober.toml())
    assert [one.id for one in given.products.list()] == list(range(1, PRODUCTS + 1)), prober.toml()
    assert given.products.get(7).name == "Product 7"
