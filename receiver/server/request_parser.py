"""Request parser: gunicorn's parser, which alone decides what a valid request is, applied to bytes in memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from receiver.server.connection import Connection

PIECE_BYTES = 4 * 1024
READ_BYTES = 64 * 1024


class PlainRequest(Request):
    """gunicorn's request without its check whether the sender may set forwarding headers: none may."""

    def _peer_trusted_for_forwarded(self) -> tuple[dict[str, str], list[str]]:
        return {}, []


class RequestParser:
    def __init__(self, cfg: Any) -> None:
        # gunicorn looks each setting up through two calls, and the parser reads twenty of them
        values = {name: setting.get() for name, setting in cfg.settings.items()}
        self._settings = SimpleNamespace(**values, is_ssl=False, forwarded_allow_networks=cfg.forwarded_allow_networks)

    def parse(self, connection: Connection) -> Any:
        """Raises gunicorn's errors for a request that is not valid."""
        pieces = in_pieces(connection.request) if connection.chunked else iter([connection.request])
        request = PlainRequest(self._settings, IterUnreader(pieces), connection.client)
        request._expected_100_continue = False  # already sent, where the sender waited for it
        if not connection.complete:
            request.force_close()
        return request

    def ends_as_framed(self, connection: Connection) -> bool:
        """Whether the parser finds the end of a chunked body where the framing found it.

        If not, the beginning of the next request is unknown. It is checked before the answer is written, because the
        answer says whether the connection stays open, and the view may not read the body at all.
        """
        trial = self.parse(connection)
        try:
            while trial.body.read(READ_BYTES):
                pass
        except Exception:  # noqa: BLE001  the view that reads the body answers with the error
            return False
        return not trial.unreader.read()


def in_pieces(request: bytes) -> Iterator[bytes]:
    """Small pieces, because the parser copies the rest of a piece with each chunk in it."""
    return (request[at : at + PIECE_BYTES] for at in range(0, len(request), PIECE_BYTES))
