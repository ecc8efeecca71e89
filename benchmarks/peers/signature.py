"""The signature check of each receiver here: Standard Webhooks in ten lines."""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping

KEY = base64.b64decode(os.environ["BENCH_SECRET"].removeprefix("whsec_"))


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
    return any(
        hmac.compare_digest(expected, item.removeprefix("v1,")) for item in headers["webhook-signature"].split(" ")
    )
