"""Presets of shops and marketplaces. Only data; the comment above a preset names its source."""

from dataclasses import replace

from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.presets import preset_records as records
from receiver.contract.signing.presets import preset_topics as topics
from receiver.contract.signing.presets.generic import STANDARD_WEBHOOKS

# The webhook id names the delivery; the event id is shared by the deliveries that one change caused.
# Topic and id are headers, and only the body is signed. So the time in the headers, which deletions have too, does not
# count; it is named because it did once: see `Rank` in workers/runtime/pool/late_arrivals.py.
SHOPIFY = Scheme(
    name="shopify",
    headers=("X-Shopify-Hmac-Sha256", "Shopify-Hmac-Sha256"),
    encoding="base64",
    event=Sources(
        topic=("header:X-Shopify-Topic", "header:Shopify-Topic"),
        id=("header:X-Shopify-Webhook-Id", "header:Shopify-Webhook-Id"),
        resource_id=("json:id", "json:order_id", "json:customer.id"),
        data=("body",),
        occurred=("json:updated_at", "header:X-Shopify-Triggered-At", "header:Shopify-Triggered-At"),
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

# Spree 5.4 and later; 5.3 signed the body alone (extend hex-body with its header).
SPREE = Scheme(
    name="spree",
    headers=("X-Spree-Webhook-Signature",),
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

# Documented by users' code only, so unconfirmed. Of the body, only time and id are signed: an attacker with a captured
# delivery can send it with other content. Read the resource from Ecwid's API.
ECWID = Scheme(
    name="ecwid",
    headers=("X-Ecwid-Webhook-Signature",),
    encoding="base64",
    signed="{json:eventCreated}.{json:eventId}",
    allow_unsigned_body=True,
    event=Sources(
        topic=("json:eventType",),
        id=("json:eventId",),
        resource_id=("json:entityId",),
        data=("body",),
        occurred=("json:eventCreated",),
        store=("json:storeId",),
    ),
    topics=topics.ECWID,
)

# developers.squarespace.com/webhooks: the secret is hex. The payload holds the order's id.
SQUARESPACE = Scheme(
    name="squarespace",
    headers=("Squarespace-Signature",),
    secret_encoding="hex",  # noqa: S106
    event=Sources(
        topic=("json:topic",),
        id=("json:id",),
        resource_id=("json:data.orderId",),
        data=("json:data",),
        occurred=("json:createdOn",),
        store=("json:websiteId",),
    ),
    topics=topics.SQUARESPACE,
)

# lemonsqueezy-webhooks (npm), by a user, verifies it so; fields: @lemonsqueezy/lemonsqueezy.js 4.0.
LEMONSQUEEZY = Scheme(
    name="lemonsqueezy",
    headers=("X-Signature",),
    event=Sources(
        topic=("json:meta.event_name",),
        id=(),
        resource_id=("json:data.id",),
        data=("json:data",),
        occurred=("json:data.attributes.updated_at",),
        store=("json:data.attributes.store_id",),
    ),
    topics=topics.LEMONSQUEEZY,
    record=records.LEMONSQUEEZY,
)

# commercelayer-webhooks (npm), by a user, verifies it so; fields: @commercelayer/sdk 7.12.
COMMERCELAYER = Scheme(
    name="commercelayer",
    headers=("X-CommerceLayer-Signature",),
    encoding="base64",
    event=Sources(
        topic=("header:X-CommerceLayer-Topic",),
        id=(),
        resource_id=("json:data.id",),
        data=("json:data",),
        occurred=("json:data.attributes.updated_at",),
    ),
    topics=topics.COMMERCELAYER,
    record=records.COMMERCELAYER,
)

# webflow-api 3.3 (npm).
WEBFLOW = Scheme(
    name="webflow",
    headers=("x-webflow-signature",),
    signed="{timestamp}:{body}",
    timestamp="header:x-webflow-timestamp",
    timestamp_unit="ms",
    event=Sources(
        topic=("json:triggerType",),
        id=(),
        resource_id=("json:payload.orderId", "json:payload.id", "json:payload.pageId", "json:payload.siteId"),
        data=("json:payload",),
        occurred=("json:payload.acceptedOn", "json:payload.lastUpdated", "json:payload.submittedAt"),
    ),
    topics=topics.WEBFLOW,
    record=records.WEBFLOW,
)

# Documented by users' code only, so unconfirmed. The URL is signed exactly as it is entered at Shopee.
SHOPEE = Scheme(
    name="shopee",
    headers=("Authorization",),
    signed="{url}|{body}",
    event=Sources(
        topic=("json:code",),
        id=(),
        resource_id=("json:data.ordersn", "json:data.item_id"),
        data=("json:data",),
        occurred=("json:timestamp",),
        store=("json:shop_id",),
    ),
    topics=topics.SHOPEE,
)

# Documented by users' code only, so unconfirmed. The app key is signed and not sent: extend this preset, and set
# `signed` to your app key and {body}. Without that, every delivery is refused.
TIKTOK_SHOP = Scheme(
    name="tiktok-shop",
    headers=("Authorization",),
    signed="YOUR_APP_KEY{body}",
    event=Sources(
        topic=("json:type",),
        id=("json:tts_notification_id",),
        resource_id=("json:data.order_id", "json:data.package_id", "json:data.product_id"),
        data=("json:data",),
        occurred=("json:timestamp",),
        store=("json:shop_id",),
    ),
    topics=topics.TIKTOK_SHOP,
)

# Documented by users' code only, so unconfirmed; that code allows 48 hours. The older X-Recharge-Hmac-Sha256 is
# SHA-256(secret + body) and is not read. Fields: @rechargeapps/storefront-client 2.3.
RECHARGE = Scheme(
    name="recharge",
    headers=("X-Recharge-Webhook-Signature",),
    list_sep=",",
    pair_sep="=",
    sig_keys=("v1",),
    signed="{timestamp}.{body}",
    timestamp="sig:t",
    tolerance=172_800,
    event=Sources(
        topic=("header:X-Recharge-Topic",),
        id=(),
        resource_id=("json:order.id", "json:charge.id", "json:subscription.id", "json:customer.id", "json:product.id"),
        data=("json:order", "json:charge", "json:subscription", "json:customer", "json:product", "body"),
        occurred=(),
    ),
    record=records.RECHARGE,
)

PRESETS = (
    SHOPIFY,
    WOOCOMMERCE,
    BIGCOMMERCE,
    NUVEMSHOP,
    SHOPWARE,
    SALLA,
    SPREE,
    ECWID,
    SQUARESPACE,
    LEMONSQUEEZY,
    COMMERCELAYER,
    WEBFLOW,
    SHOPEE,
    TIKTOK_SHOP,
    RECHARGE,
)
