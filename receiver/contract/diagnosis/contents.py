"""Contents: every way to build the text that a store may have signed, from the values of a capture."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple
from urllib.parse import urlsplit

from receiver.contract.diagnosis.captures import Capture, Unit, unit_of, words
from receiver.contract.signing.sources import FORM_SORTED, METHOD, BodyFields, header_bytes

MAX_TIMES = 6
MAX_NAMES = 10
MAX_FIELDS = 12
"""The number of timestamps, of headers, and of fields of query and body that a search tries."""
SEPARATORS = (".", "", ":", "|", "\n", "&", ";", ",", "-", "_", "::", "+", " ", "#", "/", "\r\n")
# What may be signed: B body, T time, N another header or query field (n: one of the first), F a field of the body
# (f: one of the first), U URL, M method, V version. The most usual first, but those that take longest last, so that a
# search tries the others before it reaches its limit. docs/schemes.md lists them in words.
SHAPES = (
    "B", "TB", "VTB", "NB", "UB", "NTB", "UTB", "MB", "MTB", "MUB", "VB", "MUTB", "T", "NT", "FT", "UT", "MT", "FF",
    "N", "F", "UN", "UF", "NUB", "MNB", "NNB", "MUT", "NUT", "MNT", "NN", "NNT", "FB", "ffT", "NF", "MUNB", "fff",
    "NUTB", "NNTB", "VNTB", "MNTB", "MUNTB", "NFT", "nnnB", "FTB",
)  # fmt: skip
ENDS = {"": 9, "\n": 4, "\r\n": 2}
"""The texts that may follow the last part, with the number of parts up to which each is tried."""
MAX_FIRST = 6
MAX_TEXT = 256
"""The length of a value that is tried as a part. A field of a form may be the whole message."""
VERSIONS = ("v0", "v1", "v2", "v3", "v4", "1", "2")
_USUAL = {"id", "topic", "event", "type", "nonce", "shop", "store", "delivery", "message", "request", "token"}


class Timestamp(NamedTuple):
    """A value that looks like a timestamp, and its source."""

    source: str
    text: str
    unit: Unit


class Way(NamedTuple):
    """How a part is written in `signed`; for a timestamp, with its source."""

    placeholder: str
    time: Timestamp | None = None


Ways = tuple[Way, ...]
"""The ways to write a part of the signed content. Values that are equal in a capture are one part with several ways."""


class Content(NamedTuple):
    """Bytes that a store may have signed: the parts, with a text between them and one at the end."""

    parts: tuple[Ways, ...]
    separator: str
    end: str
    data: bytes
    about: tuple[str, str] = ("", "")
    """For content of another delivery: how it differs from this one, and the fix."""

    def readings(self) -> Iterator[tuple[str, Timestamp | None]]:
        """Yield each template that gives these bytes, with the source of its timestamp; the most usual first."""
        for ways in product(*self.parts):
            times = [way.time for way in ways if way.time]
            if len(times) < 2:
                signed = self.separator.join(way.placeholder for way in ways) + self.end
                yield signed, times[0] if times else None


class Slots:
    """The parts of a capture, by the letters of `SHAPES`."""

    def __init__(self, capture: Capture, *, url: str, times: Sequence[Timestamp], taken: set[str]) -> None:
        self._by_data: dict[bytes, list[Way]] = {}
        self.slots: dict[str, list[bytes]] = {letter: [] for letter in "BTNFUMV"}
        digest = hashlib.sha256(capture.body)
        self._add("B", "{body}", capture.body)
        self._add("B", "{body_sha256}", digest.hexdigest().encode())
        self._add("B", "{body_sha256_base64}", b64encode(digest.digest()))
        if capture.form:
            self._add("B", "{form_sorted}", BodyFields(capture.body).read(FORM_SORTED) or b"")
        self._add("U", "{url}", url.encode())
        self._add("U", "{path}", urlsplit(url).path.encode())
        self._add("M", "{method}", METHOD)
        for time in times[:MAX_TIMES]:
            self._add("T", "{timestamp}", time.text.encode(), time)
        self.names = self._add_names(capture, taken | {time.source for time in times})
        for version in VERSIONS:
            self._add("V", version, version.encode())

    @property
    def fixed(self) -> list[str]:
        """The parts that every capture has, as they are written in `signed`: body, method, URL and versions."""
        ways = [way.placeholder for letter in "BMUV" for data in self.slots[letter] for way in self._by_data[data]]
        return [way for way in ways if ":" not in way]  # not a header that is equal to one of them

    def _add_names(self, capture: Capture, taken: set[str]) -> list[str]:
        sources = [
            source
            for source, text in capture.values.items()
            if source not in taken and (0 < len(text) <= MAX_TEXT or source.startswith("form:"))
        ]
        sources.sort(key=lambda source: not _USUAL & set(words(source.split(":", 1)[1])))
        outside = [source for source in sources if source.startswith(("header:", "query:"))][:MAX_NAMES]
        inside = [source for source in sources if source.startswith(("json:", "form:"))][:MAX_FIELDS]
        for source in outside:
            self._add("N", f"{{{source}}}", header_bytes(capture.values[source]))
        for source in inside:
            self._add("F", f"{{{source}}}", capture.values[source].encode("utf-8", "surrogatepass"))
        return outside + inside

    def _add(self, letter: str, placeholder: str, data: bytes, time: Timestamp | None = None) -> None:
        if not data and letter != "B":
            return
        ways = self._by_data.setdefault(data, [])
        if not ways or letter == "V":
            self.slots[letter].append(data)
        if not (ways and ways[0].placeholder.startswith("{body_sha256")):  # a header with the hash proves nothing
            ways.append(Way(placeholder, time))

    def contents(self) -> Iterator[Content]:
        """Yield every content, the most usual first; each as long as the body, so one by one."""
        slots = {**self.slots, "n": self.slots["N"][:MAX_FIRST], "f": self.slots["F"][:MAX_FIRST]}
        for shape, end in product(SHAPES, ENDS):
            for order in _orders(shape) if len(shape) <= ENDS[end] else ():
                for chosen in product(*(slots[letter] for letter in order)):
                    if len(set(chosen)) == len(chosen):
                        yield from self._joined(chosen, end)

    def _joined(self, pieces: tuple[bytes, ...], end: str) -> Iterator[Content]:
        parts, last = tuple(tuple(self._by_data[data]) for data in pieces), end.encode()
        for separator in SEPARATORS if len(parts) > 1 else ("",):
            yield Content(parts, separator, end, separator.encode().join(pieces) + last)


def _orders(shape: str) -> Iterator[str]:
    """Every order of a shape's letters. A version is first.

    Method, URL and a header in every order would take most of the search, so there the method is first, or before the
    URL.
    """
    first = "V" if shape.startswith("V") else ""
    for letters in dict.fromkeys(permutations(shape[len(first) :])):
        order = first + "".join(letters)
        if not set(order) >= set("MUN") or "MU" in order or order.startswith("M"):
            yield order


def find_times(capture: Capture, beside: dict[str, str]) -> list[Timestamp]:
    """Return every value that looks like a timestamp: `beside` the signature, in a header, in query and body."""
    values = {**beside, **capture.values}
    return [Timestamp(source, text, unit) for source, text in values.items() if (unit := unit_of(text))]
