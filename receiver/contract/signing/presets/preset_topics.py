"""Maps from the stores' event names for products, orders and customers to topics.

Only data. A map translates a delivery's event name to a topic, and a topic to event names when subscribing. So a name
that is spelled like its topic is listed, too, and so are two names with the same meaning.
"""

from __future__ import annotations


def _same(*names: str) -> dict[str, str]:
    """Map names that are spelled like their topics."""
    return {name: name for name in names}


SHOPIFY = {
    "products/create": "product.created",
    "products/update": "product.updated",
    "products/delete": "product.deleted",
    "variants/in_stock": "variant.in_stock",
    "variants/out_of_stock": "variant.out_of_stock",
    "inventory_levels/update": "inventory_level.updated",
    "orders/create": "order.created",
    "orders/updated": "order.updated",
    "orders/edited": "order.edited",
    "orders/paid": "order.paid",
    "orders/fulfilled": "order.fulfilled",
    "orders/partially_fulfilled": "order.partially_fulfilled",
    "orders/cancelled": "order.cancelled",
    "orders/delete": "order.deleted",
    "orders/risk_assessment_changed": "order.risk_assessment_changed",
    "order_transactions/create": "order_transaction.created",
    "refunds/create": "order.refunded",
    "customers/create": "customer.created",
    "customers/update": "customer.updated",
    "customers/delete": "customer.deleted",
    "customers/enable": "customer.enabled",
    "customers/disable": "customer.disabled",
    "customers/merge": "customer.merged",
    "customers/data_request": "customer.data_requested",
    "customers/redact": "customer.redacted",
    "customers_marketing_consent/update": "customer.marketing_consent_updated",
    "customers_email_marketing_consent/update": "customer.email_consent_updated",
    "customer.tags_added": "customer.tags_added",
    "customer.tags_removed": "customer.tags_removed",
    "app/uninstalled": "app.uninstalled",
    "shop/update": "shop.updated",
    "shop/redact": "shop.redacted",
}

WOOCOMMERCE = _same(
    "product.created",
    "product.updated",
    "product.deleted",
    "product.restored",
    "order.created",
    "order.updated",
    "order.deleted",
    "order.restored",
    "customer.created",
    "customer.updated",
    "customer.deleted",
    "coupon.created",
    "coupon.updated",
    "coupon.deleted",
    "coupon.restored",
)

BIGCOMMERCE = {
    "store/product/created": "product.created",
    "store/product/updated": "product.updated",
    "store/product/deleted": "product.deleted",
    "store/product/inventory/updated": "product.inventory_updated",
    "store/product/inventory/order/updated": "product.inventory_updated_by_order",
    "store/sku/created": "variant.created",
    "store/sku/updated": "variant.updated",
    "store/sku/deleted": "variant.deleted",
    "store/sku/inventory/updated": "variant.inventory_updated",
    "store/sku/inventory/order/updated": "variant.inventory_updated_by_order",
    "store/order/created": "order.created",
    "store/order/updated": "order.updated",
    "store/order/archived": "order.archived",
    "store/order/statusUpdated": "order.status_updated",
    "store/order/message/created": "order.message_created",
    "store/order/refund/created": "order.refunded",
    "store/order/transaction/created": "order_transaction.created",
    "store/order/transaction/updated": "order_transaction.updated",
    "store/customer/created": "customer.created",
    "store/customer/updated": "customer.updated",
    "store/customer/deleted": "customer.deleted",
    "store/customer/address/created": "customer.address_created",
    "store/customer/address/updated": "customer.address_updated",
    "store/customer/address/deleted": "customer.address_deleted",
    "store/customer/payment/instrument/default/updated": "customer.payment_instrument_updated",
    "store/app/uninstalled": "app.uninstalled",
}

NUVEMSHOP = {
    f"{resource}/{action}": f"{resource}.{action}"
    for resource, actions in (
        ("product", ("created", "updated", "deleted")),
        ("order", ("created", "updated", "paid", "packed", "unpacked", "fulfilled", "cancelled", "edited")),
        ("order", ("pending", "voided", "custom_fields_updated")),
        ("customer", ("created", "updated", "deleted")),
        ("app", ("uninstalled",)),
    )
    for action in actions
}

# `written` does not say whether something was created or changed: the payload names the operation.
SHOPWARE = {
    "product.written": "product.updated",
    "product.deleted": "product.deleted",
    "order.written": "order.updated",
    "order.deleted": "order.deleted",
    "checkout.order.placed": "order.created",
    "checkout.order.payment_method.changed": "order.payment_method_changed",
    "state_enter.order.state.open": "order.opened",
    "state_enter.order.state.in_progress": "order.in_progress",
    "state_enter.order.state.completed": "order.completed",
    "state_enter.order.state.cancelled": "order.cancelled",
    "state_enter.order_transaction.state.paid": "order.paid",
    "state_enter.order_transaction.state.paid_partially": "order.partially_paid",
    "state_enter.order_transaction.state.refunded": "order.refunded",
    "state_enter.order_transaction.state.refunded_partially": "order.partially_refunded",
    "state_enter.order_delivery.state.shipped": "order.shipped",
    "state_enter.order_delivery.state.shipped_partially": "order.partially_shipped",
    "state_enter.order_delivery.state.returned": "order.returned",
    "state_enter.order_delivery.state.returned_partially": "order.partially_returned",
    "customer.written": "customer.updated",
    "customer.deleted": "customer.deleted",
    "checkout.customer.register": "customer.created",
    "checkout.customer.guest_register": "customer.guest_registered",
    "checkout.customer.deleted": "customer.deleted",
    "checkout.customer.login": "customer.logged_in",
    "checkout.customer.logout": "customer.logged_out",
    "checkout.customer.changed-payment-method": "customer.payment_method_changed",
    "customer.recovery.request": "customer.recovery_requested",
}

SALLA = {
    **_same("product.created", "product.updated", "product.deleted"),
    "product.available": "product.in_stock",
    "product.quantity.low": "product.stock_low",
    "product.price.updated": "product.price_updated",
    "product.status.updated": "product.status_updated",
    "product.image.updated": "product.image_updated",
    "product.category.updated": "product.category_updated",
    "product.brand.updated": "product.brand_updated",
    "product.channels.updated": "product.channels_updated",
    "product.tags.updated": "product.tags_updated",
    **_same("order.created", "order.updated", "order.deleted", "order.cancelled", "order.refunded"),
    "order.status.updated": "order.status_updated",
    "order.payment.updated": "order.payment_updated",
    "order.products.updated": "order.products_updated",
    "order.coupon.updated": "order.coupon_updated",
    "order.total.price.updated": "order.total_updated",
    "order.shipping.address.updated": "order.address_updated",
    "order.shipment.creating": "order.shipment_requested",
    "order.shipment.created": "order.shipped",
    "order.shipment.cancelled": "order.shipment_cancelled",
    "order.shipment.return.creating": "order.return_requested",
    "order.shipment.return.created": "order.returned",
    "order.shipment.return.cancelled": "order.return_cancelled",
    **_same("customer.created", "customer.updated"),
    "customer.login": "customer.logged_in",
    "customer.otp.request": "customer.otp_requested",
    "app.uninstalled": "app.uninstalled",
}

# A catalogue event of Square names no product: it only says that the catalogue has changed.
SQUARE = {
    "catalog.version.updated": "product.catalogue_updated",
    "inventory.count.updated": "product.inventory_updated",
    **_same("order.created", "order.updated"),
    "order.fulfillment.updated": "order.fulfillment_updated",
    "order.custom_attribute.updated": "order.custom_attribute_updated",
    "order.custom_attribute.deleted": "order.custom_attribute_deleted",
    **_same("payment.created", "payment.updated"),
    **_same("refund.created", "refund.updated"),
    **_same("customer.created", "customer.updated", "customer.deleted"),
    "customer.custom_attribute.updated": "customer.custom_attribute_updated",
    "customer.custom_attribute.deleted": "customer.custom_attribute_deleted",
}

# Stripe has no orders; a completed checkout is the nearest.
STRIPE = {
    **_same("product.created", "product.updated", "product.deleted"),
    **_same("price.created", "price.updated", "price.deleted"),
    "checkout.session.completed": "order.created",
    "checkout.session.async_payment_succeeded": "order.paid",
    "checkout.session.async_payment_failed": "order.payment_failed",
    "checkout.session.expired": "order.expired",
    "charge.refunded": "order.refunded",
    **_same("customer.created", "customer.updated", "customer.deleted"),
}

SPREE = {
    **_same("product.created", "product.updated", "product.deleted", "product.activated", "product.archived"),
    **_same("product.out_of_stock", "product.back_in_stock"),
    **_same("order.created", "order.updated", "order.deleted", "order.placed", "order.completed"),
    **_same("order.approved", "order.paid", "order.shipped", "order.resumed"),
    "order.canceled": "order.cancelled",
    **_same("customer.created", "customer.updated", "customer.deleted"),
}

# Paddle calls an order a transaction.
PADDLE = {
    **_same("product.created", "product.updated", "product.imported"),
    **_same("price.created", "price.updated", "price.imported"),
    "transaction.created": "order.created",
    "transaction.updated": "order.updated",
    "transaction.ready": "order.ready",
    "transaction.billed": "order.billed",
    "transaction.paid": "order.paid",
    "transaction.completed": "order.completed",
    "transaction.canceled": "order.cancelled",
    "transaction.past_due": "order.past_due",
    "transaction.payment_failed": "order.payment_failed",
    "transaction.revised": "order.revised",
    **_same("customer.created", "customer.updated", "customer.imported"),
}

ECWID = {
    **_same("product.created", "product.updated", "product.deleted"),
    **_same("order.created", "order.updated", "order.deleted"),
    **_same("customer.created", "customer.updated", "customer.deleted"),
    "unfinished_order.created": "checkout.created",
    "unfinished_order.updated": "checkout.updated",
    "unfinished_order.deleted": "checkout.deleted",
    "application.uninstalled": "app.uninstalled",
}

SQUARESPACE = {
    "order.create": "order.created",
    "order.update": "order.updated",
    "extension.uninstall": "app.uninstalled",
}

# @lemonsqueezy/lemonsqueezy.js 4.0, `Events`.
LEMONSQUEEZY = {
    "order_created": "order.created",
    "order_refunded": "order.refunded",
    "subscription_payment_success": "subscription.payment_succeeded",
    "subscription_payment_failed": "subscription.payment_failed",
    "subscription_payment_recovered": "subscription.payment_recovered",
    "subscription_payment_refunded": "subscription.payment_refunded",
    "license_key_created": "license_key.created",
    "license_key_updated": "license_key.updated",
}

# A SKU is what is sold, so it is read as a product.
COMMERCELAYER = {
    "orders.create": "order.created",
    "orders.place": "order.placed",
    "orders.approve": "order.approved",
    "orders.cancel": "order.cancelled",
    "orders.refund": "order.refunded",
    "customers.create": "customer.created",
    "skus.create": "product.created",
    "skus.update": "product.updated",
    "skus.destroy": "product.deleted",
}

# webflow-api 3.3, `TriggerType`.
WEBFLOW = {
    "ecomm_new_order": "order.created",
    "ecomm_order_changed": "order.updated",
    "ecomm_inventory_changed": "product.inventory_updated",
    "form_submission": "form.submitted",
    "page_metadata_updated": "page.metadata_updated",
    "collection_item_created": "collection_item.created",
    "collection_item_changed": "collection_item.updated",
    "collection_item_deleted": "collection_item.deleted",
    "collection_item_published": "collection_item.published",
    "collection_item_unpublished": "collection_item.unpublished",
}

# Codes of pushes, by @congminh1254/shopee-sdk 2.7 (npm), which a user made.
SHOPEE = {
    "1": "shop.authorized",
    "2": "shop.deauthorized",
    "3": "order.status_updated",
    "4": "order.tracking_updated",
    "6": "product.banned",
    "7": "product.promotion_updated",
    "8": "product.stock_reserved",
}

# Numbers of webhooks, as code of users has them.
TIKTOK_SHOP = {
    "1": "order.status_updated",
    "2": "order.return_updated",
    "3": "order.address_updated",
    "4": "package.updated",
    "5": "product.status_updated",
    "6": "shop.deauthorized",
    "7": "shop.authorization_expiring",
}

ADYEN = {
    "AUTHORISATION": "payment.authorised",
    "CAPTURE": "payment.captured",
    "CAPTURE_FAILED": "payment.capture_failed",
    "CANCELLATION": "payment.cancelled",
    "REFUND": "payment.refunded",
    "REFUND_FAILED": "payment.refund_failed",
    "CANCEL_OR_REFUND": "payment.cancelled_or_refunded",
    "CHARGEBACK": "payment.charged_back",
    "CHARGEBACK_REVERSED": "payment.chargeback_reversed",
}

HUBSPOT = {
    f"{theirs}.{action}": f"{theirs}.{ours}"
    for theirs in ("contact", "company", "deal", "ticket", "product", "line_item")
    for action, ours in (
        ("creation", "created"),
        ("deletion", "deleted"),
        ("merge", "merged"),
        ("restore", "restored"),
        ("propertyChange", "property_changed"),
        ("associationChange", "association_changed"),
    )
}

# `queued`, `failed` and `canceled` are states of messages and of calls, so they stay as they are.
TWILIO = {
    **{state: f"message.{state}" for state in ("accepted", "sending", "sent", "delivered", "undelivered", "received")},
    "read": "message.read",
    "ringing": "call.ringing",
    "in-progress": "call.answered",
    "completed": "call.completed",
    "busy": "call.busy",
    "no-answer": "call.unanswered",
}

ZENDESK = {
    f"zen:event-type:{resource}.{action}": f"{resource}.{action}"
    for resource, actions in (
        ("ticket", ("created", "status_changed", "priority_changed", "agent_assignment_changed", "comment_added")),
        ("user", ("created", "deleted", "merged", "role_changed")),
        ("organization", ("created", "deleted", "name_changed")),
    )
    for action in actions
}

# Actions of one `resource_type` only. Others, such as `created` and `failed`, do not name theirs and stay as they are.
GOCARDLESS = {
    "confirmed": "payment.confirmed",
    "paid_out": "payment.paid_out",
    "charged_back": "payment.charged_back",
    "chargeback_cancelled": "payment.chargeback_cancelled",
    "chargeback_settled": "payment.chargeback_settled",
    "late_failure_settled": "payment.late_failure_settled",
    "resubmission_requested": "payment.resubmission_requested",
    "paid": "payout.paid",
    "funds_returned": "refund.returned",
    "active": "mandate.activated",
    "reinstated": "mandate.reinstated",
    "transferred": "mandate.transferred",
    "replaced": "mandate.replaced",
}
