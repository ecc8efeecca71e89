"""Failure groups: failures with one cause have the same group id. Pure, standard library only.

One cause is: one handler, one type of exception, one message without its variables, one function of the plugin. Paths
and modules do not count, so that a plugin which moves from a file to a package keeps its groups.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MAX_LINE = 1_000
"""How much of a message is read: of its first line, since the next ones are details."""
MAX_PATTERN = 200
MIN_ID = 4
"""A known number with fewer digits, where a code is usual, is a code: it may be equal to the id by chance."""

_NAMES_ARE_CODE = frozenset(
    ("AttributeError", "ImportError", "KeyError", "ModuleNotFoundError", "NameError", "RecordError", "TypeError")
)
"""Types whose messages quote names of fields and of code: there another name is another cause."""
_VARIABLE = "*"
_STATUS = re.compile(r"(?i)\b(status|code|error|http|answered|returned|got|response)\b\W{1,3}([1-5]\d\d)\b")
"""An HTTP status is part of the cause: 401 and 404 are mended in different ways."""
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Digits that count as text."""
_CODE = re.compile(
    r"(?i)\b((?:(?:error|exit|fault|reason|result|return|status)[ _-]?|(?<=[\"']))code|errno|sqlstate)\b\W{1,4}"
    r"([a-z]{0,6}[-_]?\d\w{0,5})\b"
    r"|\b(error)\b(?:\W{1,3}([a-z]{1,6}[-_]?\d{1,6})|[ #(\[](\d{1,5}))\b"
)
"""Nor is the code of an error a variable: `error E1001`, `[Errno 111]`, `SQLSTATE[23000]`."""
_LABEL = re.compile(
    r"(?i)(?:(\b(?:code|column|detail|error|field|message|reason|status|title|type)[\"']?)|.)\s{0,2}[:=]\s{0,2}$"
)
"""Before a quoted value, if anything is; with a group if the label says that the value is part of the cause."""
_QUOTED = re.compile(
    r"""(?<!\w)[bru]?(?:'([^'\n]*)'|"([^"\n]*)"|`([^`\n]*)`)(?!\w)|“[^“”]*”|„[^„“”]*[“”]|«[^«»]*»|\u2018[^\u2018\u2019]*\u2019|「[^「」]*」"""
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.]*")
_WORD = re.compile(r"[(\[]?[^\W\d_][\w'\u2019-]*[)\].,;:!?]*")
_DAY, _MONTH = "Mon|Tue|Wed|Thu|Fri|Sat|Sun", "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_VARIABLES = re.compile(  # what may be tried at each character is bounded, so that the time grows with the length only
    r"[A-Za-z][A-Za-z0-9+.-]{0,24}://[^\s'\"<>]+"  # URL
    r"|[^\s'\"<>()=,;:]{1,64}@[^\s'\"<>(),;]+"  # email address
    r"|(?<![\w.*])/[^\s'\"<>(),;:]+"  # path
    rf"|\b(?:(?:{_DAY})[a-z]*,? )?(?:\d\d?\.? (?:{_MONTH})[a-z]*|(?:{_MONTH})[a-z]*\.? \d\d?)\b"  # date
    r"|[A-Za-z0-9_./+@%#~-]{0,64}?\d[A-Za-z0-9_.:/+@%#~-]*"  # number, time, id, hash, address: each word with a digit
)
_LIST = re.compile(r"\*(?:[\s,;:=|&/-]+\*)+")


def group_id(handler: str, kind: str, message: str, *, function: str = "", known: Iterable[str] = ()) -> str:
    """The id of a failure's group. `known` are values of the event, which are variables wherever the message has them.

    `kind` is the name of the exception's type, `function` the innermost function of the plugin's own code.
    """
    pattern = message_pattern(message, known=known, keep_names=kind in _NAMES_ARE_CODE)
    return hashlib.sha256("\n".join((handler, kind, function, pattern)).encode("utf-8", "replace")).hexdigest()[:8]


def message_pattern(message: str, *, known: Iterable[str] = (), keep_names: bool = False) -> str:
    """A message without its variables: numbers, ids, dates, URLs, addresses, quoted values, and the known values.

    A known value that is a number is a variable like any other one, and only tells an id from a code: a short one may
    be a part of an address or of a date by chance.
    """

    def unquote(match: re.Match[str]) -> str:
        inside = next((one for one in match.groups() if one is not None), match[0][1:-1])
        if match[0][0] in "bB":  # bytes
            return _VARIABLE
        if _is_phrase(inside) or (keep_names and _NAME.fullmatch(inside)):
            return inside
        label = _LABEL.search(match.string[max(0, match.start() - 20) : match.start()])
        if label:
            return inside if label[1] and all(map(_WORD.fullmatch, inside.split())) else _VARIABLE
        return inside if inside.islower() and _NAME.fullmatch(inside) else _VARIABLE

    def keep_code(match: re.Match[str]) -> str:
        return match[0] if ids & {*match.groups()} else " ".join(filter(None, match.groups())).translate(_SUPERSCRIPT)

    text = message.strip().partition("\n")[0][:MAX_LINE]
    ids = set[str]()
    for value in known:
        if value.isdecimal() and len(value) >= MIN_ID:
            ids.add(value)
        elif value and not value.isdecimal():
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", _VARIABLE, text)
    for codes in (_STATUS, _CODE):
        text = codes.sub(keep_code, text)
    text = _VARIABLES.sub(_VARIABLE, _QUOTED.sub(unquote, text))
    return " ".join(_LIST.sub(_VARIABLE, text).split())[:MAX_PATTERN]


def _is_phrase(text: str) -> bool:
    """Whether a quoted text is part of a sentence. Names of people and products have capitals after the first word."""
    first, *rest = text.split() or [""]
    return bool(rest and _WORD.fullmatch(first)) and not any(word[:1].isupper() and not word.isupper() for word in rest)
