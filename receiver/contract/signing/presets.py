"""Presets: the schemes of known stores. Only data; `scheme show NAME` and docs/schemes.md print it.

They follow the vendors' documentation. Where it is incomplete, a comment says what is assumed.
"""

from __future__ import annotations

from dataclasses import replace

from receiver.contract.signing import preset_records as records
from receiver.contract.signing import preset_topics as topics
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

# The webhook id names the delivery; the event id is shared by the deliveries that one change caused.
# Topic and id are headers, and only the body is signed.
SHOPIFY = Scheme(
    name="shopify",
    headers=("X-Shopify-Hmac-Sha256", "Shopify-Hmac-Sha256"),
    encoding="base64",
    event=Sources(
        topic=("header:X-Shopify-Topic", "header:Shopify-Topic"),
        id=("header:X-Shopify-Webhook-Id", "header:Shopify-Webhook-Id"),
        resource_id=("json:id", "json:order_id", "json:customer.id"),
        data=("body",),
        occurred=("header:X-Shopify-Triggered-At", "header:Shopify-Triggered-At", "json:updated_at"),
        store=("header:X-Shopify-Shop-Domain", "header:Shopify-Shop-Domain"),
    ),
    topics=topics.SHOPIFY,
    record=records.SHOPIFY,
)

# When a webhook is made, WooCommerce sends one unsigned ping (`webhook_id=1`). It is refused, which does no harm.
WOOCOMMERCE = Scheme(
    name="woocommerce",
    headers=("X-WC-Webhook-Signature",),
    encoding="base64",
    event=Sources(
        topic=("header:X-WC-Webhook-Topic",),
        id=("header:X-WC-Webhook-Delivery-ID",),
        resource_id=("json:id",),
        data=("body",),
        occurred=("json:date_modified_gmt", "json:date_created_gmt"),
        store=("header:X-WC-Webhook-Source",),
    ),
    topics=topics.WOOCOMMERCE,
    record=records.WOOCOMMERCE,
)

# BigCommerce uses Standard Webhooks; the key is the app's client secret as text. Webhooks that do not belong to an
# app are not signed and can only have custom headers: they are refused.
# Its payload holds ids only. Whether a retry keeps its webhook-id is not documented, hence id+body.
BIGCOMMERCE = replace(
    STANDARD_WEBHOOKS,
    name="bigcommerce",
    secret_prefix="",
    secret_encoding="utf8",  # noqa: S106
    dedupe="id+body",
    event=Sources(
        topic=("json:scope",),
        id=("header:webhook-id",),
        resource_id=("json:data.id", "json:data.product_id", "json:data.order_id"),
        data=("json:data",),
        occurred=("json:created_at",),
        store=("json:producer", "json:store_id"),
    ),
    topics=topics.BIGCOMMERCE,
)

# Thin payloads without a delivery id: {"store_id": 1, "event": "order/paid", "id": 2}
NUVEMSHOP = Scheme(
    name="nuvemshop",
    headers=("X-Linkedstore-HMAC-SHA256",),
    encoding="hex",
    event=Sources(
        topic=("json:event",),
        id=(),
        resource_id=("json:id",),
        data=("body",),
        occurred=(),
        store=("json:store_id",),
    ),
    topics=topics.NUVEMSHOP,
)

# The timestamp is in the signed body and is new at each attempt (Shopware 6.4.1 and later).
SHOPWARE = Scheme(
    name="shopware",
    headers=("shopware-shop-signature",),
    encoding="hex",
    timestamp="json:timestamp",
    dedupe="id",
    event=Sources(
        topic=("json:data.event",),
        id=("json:source.eventId",),
        resource_id=(
            "json:data.payload.0.primaryKey",
            "json:data.payload.order.id",
            "json:data.payload.customer.id",
        ),
        data=(
            "json:data.payload.order",
            "json:data.payload.customer",
            "json:data.payload.0",
            "json:data.payload",
            "json:data",
        ),
        occurred=("json:timestamp",),
        store=("json:source.shopId", "json:source.url"),
    ),
    topics=topics.SHOPWARE,
    record=records.SHOPWARE,
)

# For the strategy "signature"; under "token" Salla sends the secret itself, which does not authenticate the body.
SALLA = Scheme(
    name="salla",
    headers=("X-Salla-Signature",),
    encoding="hex",
    event=Sources(
        topic=("json:event",),
        id=(),
        resource_id=("json:data.id", "json:data.order.id"),
        data=("json:data",),
        occurred=("json:created_at",),
        store=("json:merchant",),
    ),
    topics=topics.SALLA,
    record=records.SALLA,
)

# The notification URL is signed exactly as it was entered at Square, including a last slash: see [stores.NAME] url.
SQUARE = Scheme(
    name="square",
    headers=("x-square-hmacsha256-signature",),
    encoding="base64",
    signed="{url}{body}",
    dedupe="id",
    event=Sources(
        topic=("json:type",),
        id=("json:event_id",),
        resource_id=("json:data.id",),
        data=(
            "json:data.object.order_created",
            "json:data.object.order_updated",
            "json:data.object.customer",
            "json:data.object.payment",
            "json:data.object",
            "json:data",
        ),
        occurred=("json:created_at",),
        store=("json:merchant_id",),
    ),
    topics=topics.SQUARE,
    record=records.SQUARE,
)

# The key is the whole endpoint secret, "whsec_" included. v0 is a test signature and never counts.
STRIPE = Scheme(
    name="stripe",
    headers=("Stripe-Signature",),
    encoding="hex",
    list_sep=",",
    pair_sep="=",
    sig_keys=("v1",),
    signed="{timestamp}.{body}",
    timestamp="sig:t",
    dedupe="id",
    event=Sources(
        topic=("json:type",),
        id=("json:id",),
        resource_id=("json:data.object.id",),
        data=("json:data.object", "json:data"),
        occurred=("json:created",),
        store=("json:account",),
    ),
    topics=topics.STRIPE,
    record=records.STRIPE,
)

# Not a store, but many stores copy this form. The older X-Hub-Signature is SHA-1 and is not read.
GITHUB = Scheme(
    name="github",
    headers=("X-Hub-Signature-256",),
    encoding="hex",
    pair_sep="=",
    sig_keys=("sha256",),
    event=Sources(
        topic=("header:X-GitHub-Event",),
        id=("header:X-GitHub-Delivery",),
        resource_id=("json:issue.id", "json:pull_request.id", "json:release.id", "json:repository.id"),
        data=("body",),
        occurred=("json:head_commit.timestamp", "json:repository.updated_at"),
        store=("json:repository.full_name",),
    ),
)

# Events only: slash commands are sent as forms and are stored as unreadable, and the one-time challenge
# (`url_verification`) is not answered; confirm the URL with another endpoint first.
SLACK = Scheme(
    name="slack",
    headers=("X-Slack-Signature",),
    encoding="hex",
    pair_sep="=",
    sig_keys=("v0",),
    signed="v0:{timestamp}:{body}",
    timestamp="header:X-Slack-Request-Timestamp",
    dedupe="id",
    event=Sources(
        topic=("json:event.type", "json:type"),
        id=("json:event_id",),
        resource_id=("json:event.user.id", "json:event.channel.id", "json:event.channel"),
        data=("json:event", "body"),
        occurred=("json:event_time",),
        store=("json:team_id",),
    ),
)

# Spree 5.4 and later; 5.3 signed the body alone (extend hex-body with its header).
SPREE = Scheme(
    name="spree",
    headers=("X-Spree-Webhook-Signature",),
    encoding="hex",
    signed="{timestamp}.{body}",
    timestamp="header:X-Spree-Webhook-Timestamp",
    dedupe="id",
    event=Sources(
        topic=("json:name",),
        id=("json:id",),
        resource_id=("json:data.id",),
        data=("json:data",),
        occurred=("json:created_at",),
    ),
    topics=topics.SPREE,
    record=records.SPREE,
)

PADDLE = Scheme(
    name="paddle",
    headers=("Paddle-Signature",),
    encoding="hex",
    list_sep=";",
    pair_sep="=",
    sig_keys=("h1",),
    signed="{timestamp}:{body}",
    timestamp="sig:ts",
    dedupe="id",
    event=Sources(
        topic=("json:event_type",),
        id=("json:event_id",),
        resource_id=("json:data.id",),
        data=("json:data",),
        occurred=("json:occurred_at",),
    ),
    topics=topics.PADDLE,
    record=records.PADDLE,
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

PRESETS: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        STANDARD_WEBHOOKS,
        SVIX,
        SHOPIFY,
        WOOCOMMERCE,
        BIGCOMMERCE,
        NUVEMSHOP,
        SHOPWARE,
        SALLA,
        SQUARE,
        STRIPE,
        GITHUB,
        SLACK,
        SPREE,
        PADDLE,
        HEX_BODY,
        BASE64_BODY,
    )
}
