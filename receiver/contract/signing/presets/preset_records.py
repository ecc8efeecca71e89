"""Where the payloads of known stores hold the standard fields of products, orders and customers. Only data.

The comment above a map names its source. A field with "" is not in the store's payload. Presets whose deliveries hold
only ids (BigCommerce, Nuvemshop) and those that are not shops have no map.
"""

from receiver.contract.record_map import RecordMap

# @shopify/shopify-api 13, REST types. The payload of a product has no currency: it is that of the shop.
SHOPIFY = RecordMap(
    {
        "product": {"name": "title", "price": "variants.0.price", "currency": ""},
        "order": {"status": "financial_status", "total": "total_price", "lines": "line_items"},
        "customer": {"name": "first_name last_name", "metadata": ""},
    }
)

# WooCommerce REST API v3, which its webhooks use. `meta_data` is a list, so it is no `metadata`.
WOOCOMMERCE = RecordMap(
    {
        "product": {"currency": ""},
        "order": {"lines": "line_items"},
        "buyer": {
            "id": "customer_id",
            "name": "billing.first_name billing.last_name",
            "email": "billing.email",
        },
        "customer": {"name": "first_name last_name", "metadata": ""},
    }
)

# @shopware/api-client 1.6, Admin API schema. Events such as `order.written` hold only the id, as `primaryKey`, and
# products have no other event. Unconfirmed: `stateMachineState` in the payload of every version.
SHOPWARE = RecordMap(
    {
        "product": {"id": "primaryKey", "name": "", "price": "", "currency": ""},
        "order": {
            "id": ("id", "primaryKey"),
            "status": "stateMachineState.technicalName",
            "total": "amountTotal",
            "currency": "currency.isoCode",
            "lines": "lineItems",
        },
        "line": {"product_id": "productId", "price": "unitPrice"},
        "buyer": {
            "id": "orderCustomer.customerId",
            "name": "orderCustomer.firstName orderCustomer.lastName",
            "email": "orderCustomer.email",
        },
        "customer": {"id": ("id", "primaryKey"), "name": "firstName lastName", "metadata": "customFields"},
    }
)

# docs.salla.dev, order events and order items. Unconfirmed: `product.id` of an item.
SALLA = RecordMap(
    {
        "product": {"price": "price.amount", "currency": "price.currency"},
        "order": {"status": "status.slug", "total": "amounts.total.amount", "lines": "items"},
        "line": {"product_id": "product.id", "price": "amounts.price_without_tax.amount"},
        "customer": {"name": "first_name last_name", "metadata": ""},
    }
)

# square 46 (npm): an order event holds id, state and version of the order, and a catalogue event no product.
SQUARE = RecordMap(
    {
        "order": {"id": "order_id", "status": "state", "total": "", "currency": "", "lines": "", "customer": ""},
        "customer": {"name": "given_name family_name", "email": "email_address", "metadata": ""},
    }
)

# stripe 23 (npm): an order is a checkout session, whose lines are not in events; a refunded one is a charge.
# docs.stripe.com/currencies: these three have other decimals than in ISO 4217.
STRIPE = RecordMap(
    {
        "product": {"price": "", "currency": ""},
        "order": {
            "status": ("payment_status", "status"),
            "total": ("amount_total", "amount"),
            "lines": "",
        },
        "buyer": {
            "id": "customer",
            "name": ("customer_details.name", "billing_details.name"),
            "email": ("customer_details.email", "billing_details.email"),
        },
    },
    money="minor",
    decimals={"ISK": 2, "UGX": 2, "MGA": 0},
)

# @spree/sdk 1.2. A line names its variant, not its product. Unconfirmed: the status, which is that of the payment.
SPREE = RecordMap(
    {
        "product": {"price": "price.amount", "currency": "price.currency"},
        "order": {"status": "payment_status", "lines": "items"},
        "line": {"product_id": ""},
        "buyer": {"name": "billing_address.full_name", "email": "email"},
        "customer": {"name": "full_name", "metadata": ""},
    }
)

# @paddle/paddle-node-sdk 3.10: an order is a transaction. A price is an entity of its own, and an item has no id.
PADDLE = RecordMap(
    {
        "product": {"price": "", "currency": ""},
        "order": {"total": "details.totals.total", "currency": "currency_code", "lines": "items"},
        "line": {
            "id": "",
            "product_id": "price.product_id",
            "price": "price.unit_price.amount",
            "currency": "price.unit_price.currency_code",
        },
        "buyer": {"id": "customer_id"},
        "customer": {"metadata": "custom_data"},
    },
    money="minor",
)

# @lemonsqueezy/lemonsqueezy.js 4.0: amounts are in cents. Of the lines, only the first one is in the payload.
LEMONSQUEEZY = RecordMap(
    {
        "order": {
            "status": "attributes.status",
            "total": "attributes.total",
            "currency": "attributes.currency",
            "lines": "",
        },
        "buyer": {
            "id": "attributes.customer_id",
            "name": "attributes.user_name",
            "email": "attributes.user_email",
        },
    },
    money="minor",
)

# @commercelayer/sdk 7.12, as JSON:API: lines and customer are in `included`, beside the data.
COMMERCELAYER = RecordMap(
    {
        "product": {"name": "attributes.name", "price": "", "currency": ""},
        "order": {
            "status": "attributes.status",
            "total": "attributes.total_amount_cents",
            "currency": "attributes.currency_code",
            "lines": "",
        },
        "buyer": {"id": "", "name": "", "email": "attributes.customer_email"},
        "customer": {"name": "", "email": "attributes.email", "metadata": "attributes.metadata"},
    },
    money="minor",
)

# webflow-api 3.3: prices are in the base unit of their currency. An inventory event holds no product.
WEBFLOW = RecordMap(
    {
        "product": {"name": "", "price": "", "currency": ""},
        "order": {
            "id": "orderId",
            "total": "customerPaid.value",
            "currency": "customerPaid.unit",
            "lines": "purchasedItems",
        },
        "line": {
            "id": "",
            "product_id": "productId",
            "quantity": "count",
            "price": "variantPrice.value",
            "currency": "variantPrice.unit",
        },
        "buyer": {"id": "", "name": "customerInfo.fullName", "email": "customerInfo.email"},
    },
    money="minor",
)

# @rechargeapps/storefront-client 2.3, whose orders are like those of webhooks. A line has no id of its own.
RECHARGE = RecordMap(
    {
        "order": {"total": "total_price", "lines": "line_items"},
        "line": {"id": "", "product_id": "external_product_id.ecommerce", "price": "unit_price"},
        "customer": {"name": "first_name last_name", "metadata": ""},
    }
)
