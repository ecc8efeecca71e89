"""Checks of a scheme: each refuses one kind of unsafe or meaningless scheme. The message is the fix."""

from __future__ import annotations

import re

from receiver.contract.signing.scheme_data import SchemeData
from receiver.contract.signing.sources import (
    BODY,
    PLACEHOLDER,
    SECRET,
    optional_parts,
    parse_source,
    parse_template,
    written,
)

PLACEHOLDERS = (
    "body",
    "body_sha256",
    "body_sha256_base64",
    "timestamp",
    "url",
    "path",
    "method",
    "header:NAME",
    "query:NAME",
    "json:a.b",
    "form:NAME",
    "form_sorted",
    "secret",
)
MAX_SIGNATURES = 8
"""Headers and sources that may hold a signature."""
MAX_POSITIONS = 16
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TOPIC = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class SchemeError(ValueError):
    """A scheme is unsafe or meaningless. `key` is the config key to change; the message says how."""

    def __init__(self, key: str, fix: str) -> None:
        super().__init__(fix)
        self.key = key


def _check_headers(scheme: SchemeData) -> None:
    if not scheme.headers and not scheme.signature:
        raise SchemeError("headers", "headers is empty: name the header that holds the signature")
    for name in scheme.headers:
        if not _HEADER_NAME.fullmatch(name):
            raise SchemeError("headers", f"{name!r} is not a valid header name")
    if len(scheme.headers) + len(scheme.signature) > MAX_SIGNATURES:
        raise SchemeError("headers", f"headers and signature name more than {MAX_SIGNATURES} places; remove some")


def _check_signature(scheme: SchemeData) -> None:
    for source, (kind, name) in scheme.places[len(scheme.headers) :]:
        if not source.startswith(("json:", "form:", "query:")) or not name:
            raise SchemeError(
                "signature",
                f'{source!r} cannot hold a signature; write "json:a.b", "form:NAME" or "query:NAME", and name headers '
                "in headers",
            )
        if kind != "header" and scheme.signs_content:
            raise SchemeError(
                "signed",
                f"the signature at {source} is a part of the body, so the whole body cannot be signed; list the fields "
                'that the store signs, as in "{json:id}.{json:type}"',
            )
        if (kind, name) in scheme.signed_parts:
            raise SchemeError("signed", f"signed has {source}, which is the signature itself; remove it")


def _check_form(scheme: SchemeData) -> None:
    if scheme.sig_keys and not scheme.pair_sep:
        raise SchemeError("sig_keys", 'sig_keys needs pair_sep, the text between key and signature, such as "="')
    if scheme.pair_sep and not scheme.sig_keys:
        raise SchemeError("pair_sep", 'pair_sep needs sig_keys, the keys that hold signatures, such as ["v1"]')
    if scheme.list_sep and scheme.list_sep == scheme.pair_sep:
        raise SchemeError("list_sep", "list_sep and pair_sep are the same; a header cannot be split by both")
    if "" in scheme.sig_keys:
        raise SchemeError("sig_keys", "sig_keys holds an empty key; write the text before pair_sep")
    if scheme.sig_index < 0:
        return
    if scheme.pair_sep or not scheme.list_sep:
        raise SchemeError(
            "sig_index", 'sig_index counts the parts of a header: set list_sep, such as ",", and remove pair_sep'
        )
    if scheme.sig_index >= MAX_POSITIONS:
        raise SchemeError("sig_index", f"sig_index is a position from 0 to {MAX_POSITIONS - 1}")


def _check_signed(scheme: SchemeData) -> None:
    if set("{}") & set(PLACEHOLDER.sub("", scheme.signed)):
        raise SchemeError("signed", "signed has an unmatched brace; write placeholders like {body}")
    for kind, name in scheme.signed_parts:
        if f"{kind}:" not in _NAMED if name else kind not in PLACEHOLDERS:
            known = " ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise SchemeError("signed", f"signed has {{{written((kind, name))}}}, which is unknown; there are {known}")
    if unnamed := [kind for kind, name in optional_parts(scheme.signed) if not name]:
        raise SchemeError(
            "signed",
            f"signed has {{{unnamed[0]}?}}; only a header, a query field or a field of the body may be missing, so "
            "remove the question mark",
        )
    if scheme.signs_content:
        return
    if not scheme.allow_unsigned_body:
        raise SchemeError(
            "signed",
            "signed leaves out {body}, so an attacker could change the content; add it, or, if the store "
            "does not sign the body, set allow_unsigned_body = true",
        )
    if all(kind in _CONSTANT for kind, _ in scheme.signed_parts):
        raise SchemeError("signed", "signed is the same for every delivery; add a placeholder, such as {timestamp}")


_NAMED = ("header:", "json:", "form:")
_CONSTANT = ("url", "path", "method")


def _check_secret(scheme: SchemeData) -> None:
    """Plain SHA-256 has no other place for the secret. After a first one, only a body that is read may be last."""
    parts = list(parse_template(scheme.signed))
    if scheme.algorithm != "sha256":
        if SECRET in parts:
            raise SchemeError(
                "signed", 'signed has {secret}, which HMAC adds itself; remove it, or set algorithm = "sha256"'
            )
        return
    if parts.count(SECRET) != 1 or SECRET not in (parts[0], parts[-1]):
        raise SchemeError(
            "signed",
            'algorithm = "sha256" needs {secret} first or last in signed, as in "{secret}{body}" or "{body}{secret}"',
        )
    if parts[0] == SECRET and [part for part in parts if not isinstance(part, bytes)][-1] != BODY:
        raise SchemeError(
            "signed",
            "signed begins with {secret}, so an attacker can add bytes at its end without the secret; only {body} may "
            "be there, since a body with these bytes cannot be read",
        )


def _check_timestamp(scheme: SchemeData) -> None:
    kind, name = scheme.timestamp_source
    if not scheme.timestamp:
        if scheme.signs_time:
            raise SchemeError("timestamp", 'signed has {timestamp}; set its source: timestamp = "header:NAME"')
        return
    if kind not in ("header", "sig", "json", "form") or not name:
        raise SchemeError("timestamp", 'timestamp is "header:NAME", "sig:KEY", "json:a.b", "form:NAME" or "query:NAME"')
    if kind == "sig":
        _check_time_in_signature(scheme, name)
    if not scheme.signs(scheme.timestamp):
        raise SchemeError(
            "timestamp",
            f"{scheme.timestamp} is not signed, so an attacker could change it; add {{timestamp}} to signed, or set "
            'timestamp = ""',
        )


def _check_time_in_signature(scheme: SchemeData, name: str) -> None:
    if scheme.sig_index >= 0:
        if name not in map(str, range(MAX_POSITIONS)) or name == str(scheme.sig_index):
            raise SchemeError(
                "timestamp",
                f'timestamp = "sig:{name}" is not the position of a part beside the signature; write "sig:0", if '
                "it is the first part of the header",
            )
        return
    if not scheme.pair_sep or not scheme.list_sep:
        raise SchemeError(
            "timestamp",
            f'timestamp = "sig:{name}" reads it from the signature header; that needs list_sep and pair_sep, '
            'such as "," and "="',
        )
    if name in scheme.sig_keys:
        raise SchemeError("timestamp", f"{name} is in sig_keys; it cannot be both signature and timestamp")


def _check_joints(scheme: SchemeData) -> None:
    """A single movable part may touch others: the body fits in one place only, and so does a recent timestamp."""
    movable = scheme.movable_parts
    touching = [{left, right} for left, between, right in scheme.joints if not between and movable & {left, right}]
    if touching and (len(movable) > 1 or (scheme.signs_time and not scheme.tolerance)):
        raise SchemeError(
            "signed",
            "signed has a header or field and another placeholder with no text between them, so an attacker could move "
            "a part of one to the other; add the text that the store signs between them, or, for a single one next to "
            "{timestamp}, set a tolerance",
        )
    if touching and scheme.reads_form and scheme.signs_content:
        raise SchemeError(
            "signed",
            "signed has a header and another placeholder with no text between them, so an attacker could move a part "
            "of a form to the header, which cannot be noticed; add the text that the store signs between them",
        )


_SOURCES = ("json", "form", "header")
_WHOLE = ("body", "form")


def _check_sources(scheme: SchemeData) -> None:
    for what, parts in scheme.event.parts.items():
        for kind, name in parts:
            if what == "data":
                known, forms = kind == "json" if name else kind in _WHOLE, '"json:a.b", "body" or "form"'
            else:
                known = bool(name) and (kind in _SOURCES or (kind == "const" and what == "topic"))
                always = ', or "const:NAME"' if what == "topic" else ""
                forms = f'"json:a.b", "header:NAME", "form:NAME" or "query:NAME"{always}'
            if not known:
                raise SchemeError(f"event.{what}", f"{written((kind, name))!r} is not a source; write {forms}")


def _check_dedupe(scheme: SchemeData) -> None:
    if scheme.dedupe != "id":
        return
    for source in scheme.event.id:
        if not scheme.signs(source):
            raise SchemeError(
                "dedupe",
                f'dedupe = "id" trusts {source}, which is not signed: an attacker could send an old delivery under '
                "a new id, and the event that really has this id would be dropped as a duplicate; "
                'use dedupe = "id+body"',
            )


def _check_batch(scheme: SchemeData) -> None:
    if not scheme.batch:
        return
    kind, name = parse_source(scheme.batch)
    if scheme.batch != "body" and not (kind == "json" and name):
        raise SchemeError("batch", 'batch is "body", or "json:a.b" for a list inside the body')
    if not scheme.signs_body:
        raise SchemeError(
            "batch",
            "the body is not signed, so an attacker could add events to the list; remove batch, or, if the store signs "
            "the body, add {body} to signed",
        )
    for kind, name in (*scheme.signed_parts, scheme.timestamp_source):
        if kind == "form" or (scheme.batch == "body" and kind == "json" and not name.partition(".")[0].isdigit()):
            raise SchemeError(
                "timestamp" if (kind, name) == scheme.timestamp_source else "signed",
                f"{kind}:{name} is read from the whole delivery, which is a list, so it is never found; name a header, "
                'or, for a field of the first event, write "json:0.NAME"',
            )


def _check_topics(scheme: SchemeData) -> None:
    for theirs, ours in scheme.topics.items():
        if not _TOPIC.fullmatch(ours):
            raise SchemeError("topics", f'{theirs!r} maps to {ours!r}; write it like "order.created"')


def _check_record(scheme: SchemeData) -> None:
    for key, fix in scheme.record.problems():
        raise SchemeError(f"record.{key}", f"record.{key}: {fix}")


def _check_numbers(scheme: SchemeData) -> None:
    if not 200 <= scheme.success <= 299:
        raise SchemeError("success", "success is a 2xx status code: 200 to 299")
    if scheme.tolerance < 0:
        raise SchemeError("tolerance", "tolerance is a number of seconds; 0 turns it off")


CHECKS = (
    _check_headers,
    _check_form,
    _check_signed,
    _check_secret,
    _check_signature,
    _check_timestamp,
    _check_joints,
    _check_sources,
    _check_dedupe,
    _check_batch,
    _check_topics,
    _check_record,
    _check_numbers,
)
