"""Login: by password, or by a link that works once and is spent by a button."""

from __future__ import annotations

import re

from flask import Blueprint, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from workers.console.page_data import console, sender

pages = Blueprint("login", __name__)
MAX_PASSWORD = 1_000
_LOCAL_PATH = re.compile(r"/(?![/\\])[!-~]{0,2000}")


@pages.get("/login")
def form() -> str:
    return _form("")


@pages.post("/login")
def log_in() -> str | Response | tuple[str, int]:
    return _answer(request.form.get("password", "")[:MAX_PASSWORD], "The password is wrong.", by_link=False)


@pages.post("/login/link")
def spend_link() -> str | Response | tuple[str, int]:
    sentence = "This link is spent, too old or wrong. `storehooks console --link` prints a new one."
    return _answer(request.form.get("once", "")[:MAX_PASSWORD], sentence, by_link=True)


@pages.post("/logout")
def log_out() -> Response:
    console().access.log_out(g.cookie)
    g.new_cookie = ""
    return redirect(url_for("login.form"), 303)


def _answer(word: str, wrong: str, *, by_link: bool) -> str | Response | tuple[str, int]:
    access, address = console().access, sender()
    if seconds := access.wait_seconds(address):
        return _form(f"Too many wrong attempts. Try again in {seconds} s."), 429
    cookie = access.spend_link(word, address) if by_link else access.log_in(word, address)
    if cookie is None:
        return _form(wrong), 403
    g.new_cookie = cookie
    return redirect(_next(), 303)


def _form(sentence: str) -> str:
    once = request.values.get("once", "")
    return render_template("login.html", sentence=sentence, once=once[:40], next=_next(), access=console().access)


def _next() -> str:
    """The page to go to: a path of this site, or the overview."""
    wanted = request.values.get("next", "")
    if not _LOCAL_PATH.fullmatch(wanted):
        return url_for("overview.page")
    return wanted if wanted.startswith(request.script_root + "/") else request.script_root + wanted
