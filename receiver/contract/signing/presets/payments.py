"""Presets of payment providers. Only data; the comment above a preset names its source."""

from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.presets import preset_records as records
from receiver.contract.signing.presets import preset_topics as topics

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

PADDLE = Scheme(
    name="paddle",
    headers=("Paddle-Signature",),
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

# mercadopago 3.6 (npm). The body is not signed: read the payment from Mercado Pago's API. The package checks no age
# unless it is told to, and whether a retry is signed again is not documented, hence no tolerance.
MERCADOPAGO = Scheme(
    name="mercadopago",
    headers=("x-signature",),
    list_sep=",",
    pair_sep="=",
    sig_keys=("v1",),
    signed="id:{query:data.id};request-id:{header:x-request-id};ts:{timestamp};",
    allow_unsigned_body=True,
    timestamp="sig:ts",
    tolerance=0,
    event=Sources(
        topic=("json:action", "json:type"),
        id=("json:id",),
        resource_id=("query:data.id",),
        data=("json:data", "body"),
        occurred=("json:date_created",),
        store=("json:user_id",),
    ),
)

# @adyen/api-library 32 (npm), standard webhooks. These fields are signed, and nothing else of the body. The list holds
# one item; of others, nothing is signed, so only the first one is read.
_ITEM = "notificationItems.0.NotificationRequestItem"
ADYEN = Scheme(
    name="adyen",
    headers=(),
    signature=(f"json:{_ITEM}.additionalData.hmacSignature",),
    encoding="base64",
    signed=":".join(
        f"{{json:{_ITEM}.{name}}}"
        for name in (
            "pspReference",
            "originalReference?",
            "merchantAccountCode",
            "merchantReference",
            "amount.value",
            "amount.currency",
            "eventCode",
            "success",
        )
    ),
    allow_unsigned_body=True,
    secret_encoding="hex",  # noqa: S106
    event=Sources(
        topic=(f"json:{_ITEM}.eventCode",),
        id=(f"json:{_ITEM}.pspReference",),
        resource_id=(f"json:{_ITEM}.merchantReference",),
        data=(f"json:{_ITEM}",),
        occurred=(f"json:{_ITEM}.eventDate",),
        store=(f"json:{_ITEM}.merchantAccountCode",),
    ),
    topics=topics.ADYEN,
)

# docs.mollie.com/reference/webhooks-new; that the signature begins with `sha256=` is from users' code. The older
# webhooks of a single payment are not signed, and are refused. During a rotation there are two signatures.
MOLLIE = Scheme(
    name="mollie",
    headers=("X-Mollie-Signature",),
    list_sep=",",
    pair_sep="=",
    sig_keys=("sha256",),
    dedupe="id",
    event=Sources(
        topic=("json:type",),
        id=("json:id",),
        resource_id=("json:entityId",),
        data=("json:_embedded.entity", "body"),
        occurred=("json:createdAt",),
    ),
)

# gocardless-nodejs 10.1 (npm). The topic is the action; `resource_type` in the data says of what.
GOCARDLESS = Scheme(
    name="gocardless",
    headers=("Webhook-Signature",),
    batch="json:events",
    dedupe="id",
    event=Sources(
        topic=("json:action",),
        id=("json:id",),
        resource_id=(
            "json:links.payment",
            "json:links.refund",
            "json:links.payout",
            "json:links.subscription",
            "json:links.mandate",
            "json:links.billing_request",
        ),
        data=("body",),
        occurred=("json:created_at",),
        store=("json:links.organisation",),
    ),
    topics=topics.GOCARDLESS,
)

PRESETS = (SQUARE, STRIPE, PADDLE, MERCADOPAGO, ADYEN, MOLLIE, GOCARDLESS)
