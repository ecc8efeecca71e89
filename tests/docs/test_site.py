"""`make docs`: the pages build into a site with search; links are checked, and nothing is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.programs import ROOT

INDEX = (ROOT / "docs/index.md").read_text()
PAGES = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
LOADED = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}


def linked_pages(text: str) -> set[str]:
    return set(re.findall(r"\]\(([\w/-]+\.md)(?:#[\w-]+)?\)", text))


def test_every_page_is_found_from_the_index() -> None:
    assert PAGES - linked_pages(INDEX) == {"index.md"}


def test_the_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)


def lists_without_an_empty_line(text: str) -> list[str]:
    """Lines that begin a list or a table right after a paragraph: the site would show them as its text."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^(?! |- |\d+\. |\|).+\n((?:- |\d+\. |\|).*)$", text, flags=re.MULTILINE)
    return [str(line) for line in found]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_an_empty_line_is_before_each_list(page: str) -> None:
    assert lists_without_an_empty_line((ROOT / "docs" / page).read_text()) == []


def test_a_list_without_an_empty_line_is_detected() -> None:
    assert lists_without_an_empty_line("A text.\n- one\n- two\n") == ["- one"]
    assert lists_without_an_empty_line("A text.\n\n- one\n  more\n- two\n\n| a | b |\n") == []


class Found(HTMLParser):
    """What a page of the site links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"] or "")
        if given.get("rel") != "canonical" and (address := given.get(LOADED.get(tag, ""))):
            self.loaded.add(address)


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    config = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: docs", f"docs_dir: {docs}")
    (site.parent / "mkdocs.yml").write_text(config)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=site.parent,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


needs_mkdocs = pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="`make docs` installs mkdocs")


@pytest.mark.full
@needs_mkdocs
def test_the_site_is_complete_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(ROOT / "docs", site)
    assert done.returncode == 0, done.stderr
    pages = {path: Found(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == len(PAGES)
    for path, page in pages.items():
        assert not {address for address in page.loaded if urlsplit(address).netloc}, path
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors | {"__skip"}, f"{path}: {link}"
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", style.read_text()), style
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert any("signature-mismatch" in one["text"] for one in found)


@pytest.mark.full
@needs_mkdocs
@pytest.mark.parametrize("link", ["[a](no-such-page.md)", "[a](plugins.md#no-such-heading)", "[a](../README.md)"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs)
    (docs / "glossary.md").write_text(f"# Glossary\n\n{link}\n")
    assert build(docs, tmp_path / "site").returncode != 0
