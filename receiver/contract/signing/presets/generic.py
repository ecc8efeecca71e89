"""Presets of standards, and bases to extend. Only data."""

from dataclasses import replace

from receiver.contract.signing.grammar import Scheme, Sources

STANDARD_WEBHOOKS = Scheme(
    name="standard-webhooks",
    headers=("webhook-signature",),
    encoding="base64",
    list_sep=" ",
    pair_sep=",",
    sig_keys=("v1",),
    signed="{header:webhook-id}.{timestamp}.{body}",
    secret_prefix="whsec_",  # noqa: S106  the prefix is public
    secret_encoding="base64",  # noqa: S106
    timestamp="header:webhook-timestamp",
    dedupe="id",
)

# The same scheme under the header names it had before it became a standard.
SVIX = replace(
    STANDARD_WEBHOOKS,
    name="svix",
    headers=("svix-signature",),
    signed="{header:svix-id}.{timestamp}.{body}",
    timestamp="header:svix-timestamp",
    event=Sources(id=("header:svix-id",)),
)

# Starting points for a store that signs the body and nothing else.
HEX_BODY = Scheme(
    name="hex-body",
    headers=("X-Signature", "X-Webhook-Signature", "X-Hmac-Sha256"),
    encoding="hex",
    event=Sources(
        topic=(
            "header:X-Topic",
            "header:X-Webhook-Topic",
            "header:X-Event",
            "json:type",
            "json:event",
            "json:topic",
        ),
        id=("header:X-Delivery-Id", "header:X-Webhook-Id", "json:event_id"),
        resource_id=("json:data.id", "json:id"),
        data=("json:data", "body"),
        occurred=("json:timestamp", "json:created_at"),
        store=("header:X-Shop-Domain", "header:X-Store-Domain"),
    ),
)

BASE64_BODY = replace(HEX_BODY, name="base64-body", encoding="base64")
