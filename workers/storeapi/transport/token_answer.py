"""Token answer: the token in a token endpoint's response, or an error that names the cause and the fix. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from receiver.contract.event import follow
from workers.storeapi import exact_json
from workers.storeapi.errors import TokenRefused
from workers.storeapi.response_shapes import one_line, text_of, words_in
from workers.storeapi.transport.http import HttpResponse

DEFAULT_LIFETIME = 3600.0
"""Seconds a token is used when the token endpoint gives no usable expires_in; a 401 ends it sooner."""
MAX_LIFETIME = 86_400.0
"""A token is fetched again after a day, also where expires_in is a moment, milliseconds or nonsense."""
MAX_TOKEN = 16_384
TOKEN_PATH = "access_token"  # noqa: S105
_TOKEN_NAMES = frozenset({"accesstoken", "token", "bearertoken"})
_GRANT = "this client may not use the grant client_credentials: allow it where the client is registered"
_OTHER_STYLES = {
    "basic": 'the server may not accept HTTP Basic: set style = "body" there',
    "body": 'the server may accept HTTP Basic only: set style = "basic" there',
    "json": 'the server may read forms only: set style = "body" there',
}


class Token(NamedTuple):
    value: str
    lifetime: float

    @property
    def fresh_for(self) -> float:
        """Seconds until the refresh: it comes when a tenth of the lifetime is left, at most a minute before the end."""
        return max(self.lifetime - min(60.0, self.lifetime / 10), 0.0)


def token_in(
    response: HttpResponse, *, path: str, style: str, scheme: str, config: str, hidden: Iterable[str]
) -> Token:
    """The token in a response. `config` is the table that sets the credentials; `hidden` is in no error."""
    status, document = response.status, _document(response)
    said = words_of(response, hidden)
    refused = isinstance(document, dict) and document.get("error") and follow(document, path) is None
    if status not in (200, 201) or refused:
        code = document.get("error") if isinstance(document, dict) else ""
        raise TokenRefused(f"the token endpoint answered {status}{said}; {_fix(status, code, style, config)}")
    if document is None:
        raise TokenRefused(f"the token endpoint answered {status} with {_form(response)}; check url in {config}")
    value = follow(document, path)
    if value is None:
        raise TokenRefused(f"the token endpoint answered without {path}; {_place(document, config)}")
    beside = follow(document, path.rpartition(".")[0])
    kind = follow(beside, "token_type")
    if kind is not None and scheme and str(kind).lower() not in ("", "bearer", scheme.lower()):
        raise TokenRefused(
            f'the token has token_type "{one_line(kind)}", not Bearer; if the store accepts it with another word '
            f"before it, set scheme in {config}"
        )
    _check(value)
    return Token(value, _lifetime(follow(beside, "expires_in")))


def words_of(response: HttpResponse, hidden: Iterable[str]) -> str:
    """The error code and the words of a response, in brackets; empty where it has none."""
    document = _document(response)
    code = document.get("error") if isinstance(document, dict) else None
    if document is None:
        texts = [text_of(response.content)]
    else:
        texts = [code, words_in({**document, "error": None})] if isinstance(code, str) else [words_in(document)]
    said = one_line(": ".join(filter(None, texts)), hidden)
    return f" ({said})" if said else ""


def _fix(status: int, code: object, style: str, config: str) -> str:
    if status in (404, 405, 410):
        return f"check url in {config}: this is no token endpoint"
    if status == 415:
        return f'it does not read forms: set style = "json" in {config}'
    if code == "invalid_scope":
        return f"check scope in {config}"
    if code in ("unauthorized_client", "unsupported_grant_type"):
        return _GRANT
    return f"check client_id and client_secret in {config}; if they are right, {_OTHER_STYLES[style]}"


def _form(response: HttpResponse) -> str:
    """What the response has instead of JSON."""
    kind = one_line(response.headers.get("content-type", "").partition(";")[0]) or "no content type"
    if not response.content.strip():
        return "an empty body"
    return f"{kind} that cannot be parsed" if "json" in kind else f"{kind} instead of JSON"


def _place(document: Any, config: str) -> str:
    """Where the token seems to be, or what is there."""
    if found := next(_token_paths(document), ""):
        return f'set token_path = "{one_line(found)}" in {config}'
    if isinstance(document, dict):
        return f"its fields are {one_line(', '.join(document)) or 'none'}; set token_path in {config}"
    return f"it sent a {type(document).__name__}; check url in {config}"


def _token_paths(document: Any, above: str = "", depth: int = 4) -> Iterator[str]:
    if isinstance(document, dict) and depth:
        for name, value in document.items():
            if isinstance(value, str) and value and name.replace("_", "").lower() in _TOKEN_NAMES:
                yield above + name
            yield from _token_paths(value, f"{above}{name}.", depth - 1)


def _check(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise TokenRefused("the access_token is not text")
    if len(value) > MAX_TOKEN:
        raise TokenRefused(f"the access_token has {len(value):,} characters; the limit is {MAX_TOKEN:,}")
    if not all("!" <= letter <= "~" for letter in value):
        raise TokenRefused("the access_token has characters that no header can hold")


def _lifetime(value: Any) -> float:
    """Seconds of use. Only a number of at least one second is taken from the response."""
    try:
        seconds = 0.0 if isinstance(value, bool) else float(value)
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        seconds = 0.0
    return min(seconds, MAX_LIFETIME) if seconds >= 1 else DEFAULT_LIFETIME


def _document(response: HttpResponse) -> Any:
    """The JSON document; None where the body is none."""
    try:
        return exact_json.loads(response.content)
    except ValueError:
        return None
