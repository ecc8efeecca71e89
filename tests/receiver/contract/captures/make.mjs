// Makes the captured requests in this folder: two messages of each provider, all secrets invented.
//
// With a library, the provider's own code signs the message, or it has to accept it and to refuse a changed one.
// Without one (`library: false`), the message is signed as the named document describes.
//
// To make them again, in an empty folder: copy this file there, write {"type": "module"} to package.json, install the
// packages of `source` with npm in these versions, then: node make.mjs FOLDER
import { createHash, createHmac } from "node:crypto";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

const require = createRequire(import.meta.url);
const folder = process.argv[2] ?? ".";
const NOW = 1700000000;
const ISO = new Date(NOW * 1000).toISOString();
const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...given) {
    given.length ? super(...given) : super(NOW * 1000);
  }
  static now() {
    return NOW * 1000;
  }
};

const hmac = (key, text, encoding = "hex", algorithm = "sha256") =>
  createHmac(algorithm, key).update(text).digest(encoding);
const json = (value) => JSON.stringify(value);
const providers = [];
/** source: package and version, or document. `make(n)` returns headers, body, events and maybe query and check. */
const provider = (name, source, rest, make) => providers.push({ name, source, ...rest, make });
const throws = async (work) => {
  try {
    await work();
    return false;
  } catch {
    return true;
  }
};
const accepts = (work) => async (...given) => !(await throws(() => work(...given)));

// Shops

provider("shopify", "@shopify/shopify-api 13.1.0", { preset: "shopify", secret: "shpss_invented_0123456789" }, async (n) => {
  const body = json({ id: 820982911946154500 + n * 1000, email: `buyer${n}@example.com`, financial_status: "paid", total_price: `${n}9.90`, currency: "EUR", updated_at: ISO, line_items: [{ id: 466157049 + n, product_id: 632910392, quantity: n, price: "19.90" }], customer: { id: 115310627314723950, email: `buyer${n}@example.com`, first_name: "Ada", last_name: "Sample" } });
  require("@shopify/shopify-api/adapters/node");
  const { shopifyApi, ApiVersion } = require("@shopify/shopify-api");
  const api = shopifyApi({ apiKey: "key", apiSecretKey: "shpss_invented_0123456789", hostName: "app.example.com", isEmbeddedApp: true, apiVersion: Object.values(ApiVersion)[0], logger: { level: 0, log: () => {} } });
  const headers = { "X-Shopify-Topic": n === 1 ? "orders/create" : "orders/paid", "X-Shopify-Webhook-Id": `b54557e4-bdd9-4b37-8a5f-bf7d70bcd04${n}`, "X-Shopify-Shop-Domain": "invented.myshopify.com", "X-Shopify-API-Version": "2026-10", "X-Shopify-Triggered-At": ISO, "X-Shopify-Hmac-Sha256": hmac("shpss_invented_0123456789", body, "base64") };
  const check = async (given) => (await api.webhooks.validate({ rawBody: given, rawRequest: { method: "POST", url: "/", headers: Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toLowerCase(), v])) }, rawResponse: {} })).valid;
  return { headers, body, check, events: [{ theirs: headers["X-Shopify-Topic"], topic: n === 1 ? "order.created" : "order.paid", id: headers["X-Shopify-Webhook-Id"], resource_id: String(JSON.parse(body).id), record: { status: "paid", total: `${n}9.90`, currency: "EUR", "customer.email": `buyer${n}@example.com` } }] };
});

provider("woocommerce", "WooCommerce REST API v3, webhook reference", { library: false, preset: "woocommerce", secret: "woo invented secret" }, (n) => {
  const body = json({ id: 720 + n, status: n === 1 ? "processing" : "completed", currency: "EUR", total: `${n}9.90`, date_modified_gmt: "2023-11-14T22:13:20", customer_id: 26, billing: { first_name: "Ada", last_name: "Sample", email: `buyer${n}@example.com` }, line_items: [{ id: 315, product_id: 93, quantity: n, price: 9.9 }] });
  const topic = n === 1 ? "order.created" : "order.updated";
  return { body, headers: { "X-WC-Webhook-Source": "https://shop.example.com/", "X-WC-Webhook-Topic": topic, "X-WC-Webhook-Resource": "order", "X-WC-Webhook-Event": topic.split(".")[1], "X-WC-Webhook-ID": "142", "X-WC-Webhook-Delivery-ID": `5d1f2e3c4b5a69788796a5b4c3d2e1f${n}`, "X-WC-Webhook-Signature": hmac("woo invented secret", body, "base64") }, events: [{ theirs: topic, topic, id: `5d1f2e3c4b5a69788796a5b4c3d2e1f${n}`, resource_id: String(720 + n), record: { status: n === 1 ? "processing" : "completed", total: `${n}9.90`, currency: "EUR", "customer.email": `buyer${n}@example.com` } }] };
});

provider("bigcommerce", "standardwebhooks 1.1.1", { preset: "bigcommerce", secret: "bigcommerce-invented-client-secret" }, (n) => {
  const { Webhook } = require("standardwebhooks");
  const body = json({ producer: "stores/abc1def2gh", hash: createHash("sha1").update(String(n)).digest("hex"), created_at: NOW + n, store_id: "1001", scope: n === 1 ? "store/order/created" : "store/order/statusUpdated", data: { type: "order", id: 250 + n } });
  const library = new Webhook("bigcommerce-invented-client-secret", { format: "raw" });
  const id = `2fa1c4e0-0000-4000-8000-00000000000${n}`;
  const headers = { "webhook-id": id, "webhook-timestamp": String(NOW), "webhook-signature": library.sign(id, new Date(NOW * 1000), body) };
  return { headers, body, check: accepts((given) => library.verify(given, headers)), events: [{ theirs: n === 1 ? "store/order/created" : "store/order/statusUpdated", topic: n === 1 ? "order.created" : "order.status_updated", id, resource_id: String(250 + n) }] };
});

provider("nuvemshop", "tiendanube/api-docs, resources/webhook.md", { library: false, preset: "nuvemshop", secret: "nuvemshop-invented-app-secret" }, (n) => {
  const body = json({ store_id: 123456, event: n === 1 ? "order/created" : "order/paid", id: 871254200 + n });
  return { body, headers: { "X-Linkedstore-HMAC-SHA256": hmac("nuvemshop-invented-app-secret", body) }, events: [{ theirs: n === 1 ? "order/created" : "order/paid", topic: n === 1 ? "order.created" : "order.paid", id: "", resource_id: String(871254200 + n) }] };
});

provider("shopware", "@shopware-ag/app-server-sdk 2.0.3", { preset: "shopware", secret: "shopware-invented-shop-secret" }, async (n) => {
  const { WebCryptoHmacSigner } = require(join(dirname(require.resolve("@shopware-ag/app-server-sdk/package.json")), "dist/commonjs/signer.js"));
  const signer = new WebCryptoHmacSigner();
  const body = json({ data: { payload: { order: { id: `0198a0b0c0d07e0f8a1b2c3d4e5f600${n}`, amountTotal: 19.9 * n, currency: { isoCode: "EUR" }, stateMachineState: { technicalName: "open" }, lineItems: [{ id: "l1", productId: "p1", quantity: n, unitPrice: 19.9 }], orderCustomer: { customerId: "c1", firstName: "Ada", lastName: "Sample", email: "ada@example.com" } } }, event: "checkout.order.placed" }, source: { url: "https://shop.example.com", appVersion: "1.0.0", shopId: "dgrH7nLU6tlE", eventId: `7b04ebe416db4ebc93de4d791325e1d${n}` }, timestamp: NOW });
  const signature = await signer.sign(body, "shopware-invented-shop-secret");
  return { body, headers: { "shopware-shop-signature": signature, "sw-version": "6.7.0.0" }, check: (given) => signer.verify(signature, given, "shopware-invented-shop-secret"), events: [{ theirs: "checkout.order.placed", topic: "order.created", id: `7b04ebe416db4ebc93de4d791325e1d${n}`, resource_id: `0198a0b0c0d07e0f8a1b2c3d4e5f600${n}`, record: { status: "open", currency: "EUR", "customer.email": "ada@example.com" } }] };
});

provider("salla", "docs.salla.dev, webhooks", { library: false, preset: "salla", secret: "salla invented secret" }, (n) => {
  const body = json({ event: "order.created", merchant: 1305146709, created_at: "Tue Nov 14 2023 22:13:20 GMT+0000", data: { id: 2116149700 + n, reference_id: 4130000 + n, status: { slug: "under_review", name: "Under review" }, amounts: { total: { amount: 19.9 * n, currency: "SAR" } }, currency: "SAR", items: [{ id: 1, quantity: n, product: { id: 5 }, amounts: { price_without_tax: { amount: 19.9, currency: "SAR" } } }], customer: { id: 7, first_name: "Ada", last_name: "Sample", email: "ada@example.com" } } });
  return { body, headers: { "X-Salla-Security-Strategy": "Signature", "X-Salla-Signature": hmac("salla invented secret", body) }, events: [{ theirs: "order.created", topic: "order.created", id: "", resource_id: String(2116149700 + n), record: { status: "under_review", currency: "SAR", "customer.email": "ada@example.com" } }] };
});

provider("square", "square 46.0.0", { preset: "square", secret: "square_invented_signature_key" }, async (n, url) => {
  const { WebhooksHelper } = require("square");
  const body = json({ merchant_id: "MLEFBHHSJGVHD", type: n === 1 ? "order.created" : "customer.updated", event_id: `a1b2c3d4-0000-4000-8000-00000000000${n}`, created_at: ISO, data: n === 1 ? { type: "order_created", id: "qAD8pcZcuvvd3jd5bCQaZDoUEoLZY", object: { order_created: { created_at: ISO, location_id: "FPYCBCHYMXFK1", order_id: "qAD8pcZcuvvd3jd5bCQaZDoUEoLZY", state: "OPEN", version: 1 } } } : { type: "customer", id: "JDKYHBWT1D4F8MFH63DBMEN8Y4", object: { customer: { id: "JDKYHBWT1D4F8MFH63DBMEN8Y4", given_name: "Ada", family_name: "Sample", email_address: "ada@example.com" } } } });
  const signature = hmac("square_invented_signature_key", url + body, "base64");
  return { body, headers: { "x-square-hmacsha256-signature": signature, "square-environment": "Production" }, check: (given) => WebhooksHelper.verifySignature({ requestBody: given, signatureHeader: signature, signatureKey: "square_invented_signature_key", notificationUrl: url }), events: [n === 1 ? { theirs: "order.created", topic: "order.created", id: "a1b2c3d4-0000-4000-8000-000000000001", resource_id: "qAD8pcZcuvvd3jd5bCQaZDoUEoLZY", record: { id: "qAD8pcZcuvvd3jd5bCQaZDoUEoLZY", status: "OPEN" } } : { theirs: "customer.updated", topic: "customer.updated", id: "a1b2c3d4-0000-4000-8000-000000000002", resource_id: "JDKYHBWT1D4F8MFH63DBMEN8Y4", record: { name: "Ada Sample", email: "ada@example.com" } }] };
});

provider("spree", "@spree/sdk 1.2.1", { preset: "spree", secret: "spree-invented-secret" }, (n) => {
  const { verifyWebhookSignature } = require("@spree/sdk/webhooks");
  const body = json({ id: `evt_invented${n}`, name: "order.completed", created_at: ISO, data: { id: `or_invented${n}`, payment_status: "paid", total: `${n}9.90`, currency: "EUR", email: "ada@example.com", items: [{ id: "li_1", quantity: n, price: "19.90" }], billing_address: { full_name: "Ada Sample" } }, metadata: { spree_version: "5.4.0" } });
  const signature = hmac("spree-invented-secret", `${NOW}.${body}`);
  return { body, headers: { "X-Spree-Webhook-Timestamp": String(NOW), "X-Spree-Webhook-Signature": signature, "X-Spree-Webhook-Event": "order.completed" }, check: (given) => verifyWebhookSignature(given, signature, String(NOW), "spree-invented-secret"), events: [{ theirs: "order.completed", topic: "order.completed", id: `evt_invented${n}`, resource_id: `or_invented${n}`, record: { status: "paid", total: `${n}9.90`, currency: "EUR", "customer.email": "ada@example.com" } }] };
});

provider("ecwid", "docs.ecwid.com, webhooks, as code of its users has it", { library: false, unsigned_body: true, preset: "ecwid", secret: "ecwid-invented-client-secret" }, (n) => {
  const body = json({ eventId: `80aece08-40e8-4145-8764-6c2f0d38678${n}`, eventCreated: NOW + n, storeId: 1003, entityId: 103878160 + n, eventType: n === 1 ? "order.created" : "product.updated", data: n === 1 ? { orderId: "XJ12H", newPaymentStatus: "PAID", newFulfillmentStatus: "AWAITING_PROCESSING" } : {} });
  return { body, query: `eventtype=${n === 1 ? "order.created" : "product.updated"}`, headers: { "X-Ecwid-Webhook-Signature": hmac("ecwid-invented-client-secret", `${NOW + n}.80aece08-40e8-4145-8764-6c2f0d38678${n}`, "base64") }, events: [{ theirs: n === 1 ? "order.created" : "product.updated", topic: n === 1 ? "order.created" : "product.updated", id: `80aece08-40e8-4145-8764-6c2f0d38678${n}`, resource_id: String(103878160 + n) }] };
});

provider("squarespace", "developers.squarespace.com/webhooks, overview and verifying-notifications", { library: false, preset: "squarespace", secret: "c0ffee00112233445566778899aabbccddeeff00112233445566778899aabbcc" }, (n) => {
  const body = json({ id: `5c2ba184b63ed3cb411ce2b${n}`, websiteId: "5f3c3d55ac435e1a051f77b3", subscriptionId: "5f3c2155d947844beedda991", topic: n === 1 ? "order.create" : "order.update", createdOn: ISO, data: { orderId: `5d3c3d55ac435e1a051f77c${n}`, ...(n === 2 && { update: "FULFILLED" }) } });
  return { body, headers: { "Squarespace-Signature": hmac(Buffer.from("c0ffee00112233445566778899aabbccddeeff00112233445566778899aabbcc", "hex"), body), "User-Agent": "Squarespace/1.0" }, events: [{ theirs: n === 1 ? "order.create" : "order.update", topic: n === 1 ? "order.created" : "order.updated", id: `5c2ba184b63ed3cb411ce2b${n}`, resource_id: `5d3c3d55ac435e1a051f77c${n}` }] };
});

provider("lemonsqueezy", "lemonsqueezy-webhooks (by a user of Lemon Squeezy); fields: @lemonsqueezy/lemonsqueezy.js 4.0.0", { preset: "lemonsqueezy", secret: "lemon invented secret" }, async (n) => {
  const body = json({ meta: { test_mode: true, event_name: n === 1 ? "order_created" : "order_refunded", webhook_id: `00000000-0000-4000-8000-00000000000${n}`, custom_data: {} }, data: { type: "orders", id: String(900100 + n), attributes: { store_id: 77, customer_id: 55, identifier: "x", order_number: n, user_name: "Ada Sample", user_email: "ada@example.com", currency: "EUR", status: n === 1 ? "paid" : "refunded", total: 1990 * n, updated_at: ISO, first_order_item: { id: 5, product_id: 9, price: 1990 } } } });
  const signature = hmac("lemon invented secret", body);
  const headers = { "X-Event-Name": JSON.parse(body).meta.event_name, "X-Signature": signature };
  const { nodejsWebHookHandler } = await import("lemonsqueezy-webhooks");
  const { Readable } = require("node:stream");
  const check = async (given) => {
    let heard = false;
    const req = Object.assign(Readable.from([Buffer.from(given)]), { method: "POST", headers: { "x-signature": signature } });
    const res = { status: () => res, json: () => res, send: () => res, end: () => res, setHeader: () => res };
    await nodejsWebHookHandler({ req, res, secret: "lemon invented secret", onData: async () => { heard = true; } }).catch(() => {});
    return heard;
  };
  return { body, headers, check, events: [{ theirs: headers["X-Event-Name"], topic: n === 1 ? "order.created" : "order.refunded", id: "", resource_id: String(900100 + n), record: { status: n === 1 ? "paid" : "refunded", total: n === 1 ? "19.90" : "39.80", currency: "EUR", "customer.email": "ada@example.com" } }] };
});

provider("commercelayer", "commercelayer-webhooks (by a user of Commerce Layer); fields: @commercelayer/sdk 7.12.1", { preset: "commercelayer", secret: "cl-invented-shared-secret" }, async (n) => {
  const body = json({ data: { id: `wBXVhKzrn${n}`, type: "orders", attributes: { number: 1234 + n, status: "placed", payment_status: "authorized", currency_code: "EUR", total_amount_cents: 1990 * n, customer_email: "ada@example.com", updated_at: ISO }, relationships: {} }, included: [] });
  const headers = { "X-CommerceLayer-Topic": n === 1 ? "orders.place" : "orders.approve", "X-CommerceLayer-Signature": hmac("cl-invented-shared-secret", body, "base64") };
  const Webhook = require("commercelayer-webhooks");
  const check = accepts((given) => Webhook.handle({ headers: Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toLowerCase(), v])), body: given }, "cl-invented-shared-secret"));
  return { body, headers, check, events: [{ theirs: headers["X-CommerceLayer-Topic"], topic: n === 1 ? "order.placed" : "order.approved", id: "", resource_id: `wBXVhKzrn${n}`, record: { id: `wBXVhKzrn${n}`, status: "placed", total: n === 1 ? "19.90" : "39.80", currency: "EUR", "customer.email": "ada@example.com" } }] };
});

provider("webflow", "webflow-api 3.3.4", { preset: "webflow", secret: "webflow invented secret" }, async (n) => {
  const { Client } = require("webflow-api/wrapper/WebhooksClient");
  const body = json({ triggerType: n === 1 ? "ecomm_new_order" : "ecomm_order_changed", payload: { orderId: `fc7-12${n}`, status: "unfulfilled", acceptedOn: ISO, customerInfo: { fullName: "Ada Sample", email: "ada@example.com" }, customerPaid: { unit: "EUR", value: String(1990 * n), string: "x" }, purchasedItems: [{ count: n, productId: "5eb9fcace279761d8199790c", variantId: "v1", variantPrice: { unit: "EUR", value: "1990" } }] } });
  const at = String(NOW * 1000);
  const headers = { "x-webflow-timestamp": at, "x-webflow-signature": hmac("webflow invented secret", `${at}:${body}`) };
  const client = Object.create(Client.prototype);
  return { body, headers, check: (given) => client.verifySignature({ headers, body: given, secret: "webflow invented secret" }), events: [{ theirs: JSON.parse(body).triggerType, topic: n === 1 ? "order.created" : "order.updated", id: "", resource_id: `fc7-12${n}`, record: { id: `fc7-12${n}`, status: "unfulfilled", total: n === 1 ? "19.90" : "39.80", currency: "EUR", "customer.email": "ada@example.com" } }] };
});

provider("shopee", "open.shopee.com, push mechanism, as code of its users has it; codes: @congminh1254/shopee-sdk 2.7.0", { library: false, preset: "shopee", secret: "shopee_invented_partner_key" }, (n, url) => {
  const body = json({ data: { items: [], ordersn: `2311140A1B2C${n}`, status: n === 1 ? "UNPAID" : "READY_TO_SHIP", completed_scenario: "", update_time: NOW + n }, shop_id: 727720655, code: 3, timestamp: NOW + n });
  return { body, headers: { Authorization: hmac("shopee_invented_partner_key", `${url}|${body}`) }, events: [{ theirs: "3", topic: "order.status_updated", id: "", resource_id: `2311140A1B2C${n}` }] };
});

provider("tiktok-shop", "partner.tiktokshop.com, webhooks, as code of its users has it", { library: false, preset: "tiktok-shop", settings: { signed: "invented_app_key{body}" }, secret: "tiktok-invented-app-secret" }, (n) => {
  const body = json({ type: n === 1 ? 1 : 4, tts_notification_id: `732711239305737191${n}`, shop_id: "7494049642642441621", timestamp: NOW + n, data: { order_id: `57648675930123456${n}`, order_status: "AWAITING_SHIPMENT", update_time: NOW + n } });
  return { body, headers: { Authorization: hmac("tiktok-invented-app-secret", `invented_app_key${body}`) }, events: [{ theirs: n === 1 ? "1" : "4", topic: n === 1 ? "order.status_updated" : "package.updated", id: `732711239305737191${n}`, resource_id: `57648675930123456${n}` }] };
});

provider("recharge", "developer.rechargepayments.com, validating webhooks, as hookdeck/webhook-skills describes it", { library: false, preset: "recharge", secret: "recharge-invented-client-secret" }, (n) => {
  const body = json(n === 1 ? { charge: { id: 389400600, status: "success", total_price: "19.90", currency: "EUR", updated_at: ISO } } : { order: { id: 89400601, status: "success", total_price: "39.80", currency: "EUR", updated_at: ISO, customer: { id: 7, email: "ada@example.com" }, line_items: [] } });
  return { body, headers: { "X-Recharge-Topic": n === 1 ? "charge/paid" : "order/created", "X-Recharge-Webhook-Timestamp": String(NOW), "X-Recharge-Webhook-Signature": `t=${NOW},v1=${hmac("recharge-invented-client-secret", `${NOW}.${body}`)}`, "X-Recharge-Hmac-Sha256": createHash("sha256").update(`recharge-invented-client-secret${body}`).digest("hex") }, events: [{ theirs: n === 1 ? "charge/paid" : "order/created", topic: n === 1 ? "charge.paid" : "order.created", id: "", resource_id: n === 1 ? "389400600" : "89400601", ...(n === 2 && { record: { status: "success", total: "39.80", currency: "EUR", "customer.email": "ada@example.com" } }) }] };
});

// Payments

provider("stripe", "stripe 23.1.0", { preset: "stripe", secret: "whsec_invented0123456789" }, (n) => {
  const Stripe = require("stripe");
  const stripe = new (Stripe.default ?? Stripe)("sk_test_invented");
  const body = json({ id: `evt_1Invented${n}`, object: "event", type: "checkout.session.completed", created: NOW, data: { object: { id: `cs_test_a${n}`, object: "checkout.session", amount_total: 1990 * n, currency: "eur", payment_status: "paid", customer: "cus_1", customer_details: { name: "Ada Sample", email: "ada@example.com" } } } });
  const header = stripe.webhooks.generateTestHeaderString({ payload: body, secret: "whsec_invented0123456789", timestamp: NOW });
  return { body, headers: { "Stripe-Signature": header }, check: accepts((given) => stripe.webhooks.constructEvent(given, header, "whsec_invented0123456789")), events: [{ theirs: "checkout.session.completed", topic: "order.created", id: `evt_1Invented${n}`, resource_id: `cs_test_a${n}`, record: { status: "paid", total: n === 1 ? "19.90" : "39.80", "customer.email": "ada@example.com" } }] };
});

provider("paddle", "@paddle/paddle-node-sdk 3.10.0", { preset: "paddle", secret: "pdl_ntfset_invented" }, async (n) => {
  const { Paddle } = require("@paddle/paddle-node-sdk");
  const paddle = new Paddle("invented");
  const body = json({ event_id: `evt_01invented${n}`, event_type: "transaction.paid", occurred_at: ISO, notification_id: `ntf_01invented${n}`, data: { id: `txn_01invented${n}`, status: "paid", customer_id: "ctm_01", currency_code: "EUR", items: [{ quantity: n, price: { id: "pri_1", product_id: "pro_1", unit_price: { amount: "1990", currency_code: "EUR" } } }], details: { totals: { total: String(1990 * n), currency_code: "EUR" } } } });
  const header = `ts=${NOW};h1=${hmac("pdl_ntfset_invented", `${NOW}:${body}`)}`;
  return { body, headers: { "Paddle-Signature": header }, check: (given) => paddle.webhooks.isSignatureValid(given, "pdl_ntfset_invented", header), events: [{ theirs: "transaction.paid", topic: "order.paid", id: `evt_01invented${n}`, resource_id: `txn_01invented${n}`, record: { status: "paid", total: n === 1 ? "19.90" : "39.80", currency: "EUR" } }] };
});

provider("mercadopago", "mercadopago 3.6.1", { unsigned_body: true, preset: "mercadopago", secret: "mercadopago-invented-secret" }, (n) => {
  const { WebhookSignatureValidator } = require("mercadopago");
  const id = `12345678${n}`;
  const requestId = `bb56a2f1-6aae-46ac-982e-9dcd3581d08${n}`;
  const body = json({ action: n === 1 ? "payment.created" : "payment.updated", api_version: "v1", data: { id }, date_created: ISO, id: `7000${n}`, live_mode: false, type: "payment", user_id: "44444" });
  const xSignature = `ts=${NOW},v1=${hmac("mercadopago-invented-secret", `id:${id};request-id:${requestId};ts:${NOW};`)}`;
  return { body, query: `data.id=${id}&type=payment`, headers: { "x-signature": xSignature, "x-request-id": requestId }, check: accepts(() => WebhookSignatureValidator.validate({ xSignature, xRequestId: requestId, dataId: id, secret: "mercadopago-invented-secret", toleranceSeconds: 300 })), events: [{ theirs: JSON.parse(body).action, topic: JSON.parse(body).action, id: `7000${n}`, resource_id: id }] };
});

provider("adyen", "@adyen/api-library 32.1.0", { unsigned_body: true, preset: "adyen", secret: "00112233445566778899AABBCCDDEEFF0123456789ABCDEF0123456789ABCDEF" }, (n) => {
  const { hmacValidator } = require("@adyen/api-library");
  const validator = new hmacValidator();
  const item = { eventCode: n === 1 ? "AUTHORISATION" : "CAPTURE", success: "true", eventDate: ISO, merchantAccountCode: "InventedMerchant", merchantReference: `order-${n}`, pspReference: `791424303456789${n}`, ...(n === 2 && { originalReference: "7914243034567891" }), amount: { currency: "EUR", value: 1990 * n } };
  const key = "00112233445566778899AABBCCDDEEFF0123456789ABCDEF0123456789ABCDEF";
  const signed = { ...item, additionalData: { hmacSignature: validator.calculateHmac(item, key) } };
  return { body: json({ live: "false", notificationItems: [{ NotificationRequestItem: signed }] }), headers: { "Content-Type": "application/json" }, check: () => validator.validateHMAC(signed, key), events: [{ theirs: item.eventCode, topic: n === 1 ? "payment.authorised" : "payment.captured", id: item.pspReference, resource_id: `order-${n}` }] };
});

provider("mollie", "docs.mollie.com/reference, webhooks-new and webhooks-best-practices", { library: false, preset: "mollie", secret: "mollie-invented-secret" }, (n) => {
  const body = json({ resource: "event", id: `event_GvJ8WHrp5isUdRub9CJy${n}`, type: "payment-link.paid", entityId: `pl_qng5gbbv8NAZ5gpM5ZYg${n}`, createdAt: ISO, _embedded: { entity: { resource: "payment-link", id: `pl_qng5gbbv8NAZ5gpM5ZYg${n}`, amount: { currency: "EUR", value: "19.90" } } } });
  return { body, headers: { "X-Mollie-Signature": `sha256=${hmac("mollie-invented-secret", body)}` }, events: [{ theirs: "payment-link.paid", topic: "payment-link.paid", id: `event_GvJ8WHrp5isUdRub9CJy${n}`, resource_id: `pl_qng5gbbv8NAZ5gpM5ZYg${n}` }] };
});

provider("gocardless", "gocardless-nodejs 10.1.2", { preset: "gocardless", secret: "gocardless-invented-secret" }, (n) => {
  const { parse } = require("gocardless-nodejs/webhooks");
  const events = [1, 2].map((at) => ({ id: `EV000${n}${at}`, created_at: ISO, resource_type: "payments", action: at === 1 ? "confirmed" : "paid_out", links: { payment: `PM000${n}${at}` }, details: { origin: "gocardless", cause: "payment_confirmed" } }));
  const body = json({ events, meta: { webhook_id: `WB000${n}` } });
  const signature = hmac("gocardless-invented-secret", body);
  return { body, headers: { "Webhook-Signature": signature, Origin: "https://api.gocardless.com" }, check: accepts((given) => parse(given, "gocardless-invented-secret", signature)), events: events.map((one) => ({ theirs: one.action, topic: `payment.${one.action}`, id: one.id, resource_id: one.links.payment })) };
});

provider("braintree", "braintree 3.40.0", { secret: "invented_private_key", unsigned_body: true, scheme: { signature: ["form:bt_signature"], algorithm: "hmac-sha1", list_sep: "|", sig_index: 1, signed: "{form:bt_payload}", allow_unsigned_body: true, event: { topic: ["const:notification.received"], id: [], resource_id: [] } }, unsupported: "the key is the SHA-1 of the private key, and the payload is XML in base64" }, (n) => {
  const braintree = require("braintree");
  const gateway = new braintree.BraintreeGateway({ environment: braintree.Environment.Sandbox, merchantId: "m", publicKey: "invented_public_key", privateKey: "invented_private_key" });
  const sample = gateway.webhookTesting.sampleNotification("subscription_went_past_due", `sub${n}`);
  return { body: new URLSearchParams(sample).toString(), headers: { "Content-Type": "application/x-www-form-urlencoded" }, check: () => gateway.webhookNotification.parse(sample.bt_signature, sample.bt_payload).then(() => true), events: [{ theirs: "subscription_went_past_due", topic: "", id: "", resource_id: `sub${n}` }] };
});

provider("razorpay", "razorpay 2.9.8", { secret: "razorpay invented", scheme: { headers: ["X-Razorpay-Signature"], event: { topic: ["json:event"], id: ["header:x-razorpay-event-id"], resource_id: ["json:payload.payment.entity.id"], data: ["json:payload.payment.entity"], occurred: ["json:created_at"], store: ["json:account_id"] } } }, (n) => {
  const { validateWebhookSignature } = require("razorpay");
  const body = json({ entity: "event", account_id: "acc_BFQ7uQEaa7j2z7", event: "payment.captured", contains: ["payment"], payload: { payment: { entity: { id: `pay_DESlfW9H8K9uq${n}`, amount: 100 * n, currency: "INR", status: "captured" } } }, created_at: NOW });
  const signature = hmac("razorpay invented", body);
  return { body, headers: { "X-Razorpay-Signature": signature, "x-razorpay-event-id": `EvtInvented${n}` }, check: (given) => validateWebhookSignature(given, signature, "razorpay invented"), events: [{ theirs: "payment.captured", topic: "payment.captured", id: `EvtInvented${n}`, resource_id: `pay_DESlfW9H8K9uq${n}` }] };
});

provider("coinbase-commerce", "coinbase-commerce-node 1.0.4", { secret: "coinbase-invented", scheme: { headers: ["X-CC-Webhook-Signature"], event: { topic: ["json:event.type"], id: ["json:event.id"], resource_id: ["json:event.data.id"], data: ["json:event.data"], occurred: ["json:event.created_at"] } } }, (n) => {
  const { Webhook } = require("coinbase-commerce-node");
  const body = json({ attempt_number: n, event: { api_version: "2018-03-22", created_at: ISO, id: `24934862-d980-46cb-9402-43c81b0cdba${n}`, resource: "event", type: "charge:confirmed", data: { id: `f765421f2-1451-fafb-a513-aac6c819fba${n}`, code: "66BEOV2A" } }, id: 1, scheduled_for: ISO });
  const signature = hmac("coinbase-invented", body);
  return { body, headers: { "X-CC-Webhook-Signature": signature }, check: accepts((given) => Webhook.verifyEventBody(given, signature, "coinbase-invented")), events: [{ theirs: "charge:confirmed", topic: "charge.confirmed", id: `24934862-d980-46cb-9402-43c81b0cdba${n}`, resource_id: `f765421f2-1451-fafb-a513-aac6c819fba${n}` }] };
});

provider("creem", "creem 1.13.0", { secret: "creem_invented", scheme: { headers: ["creem-signature"], event: { topic: ["json:eventType"], id: ["json:id"], resource_id: ["json:object.id"], data: ["json:object"], occurred: ["json:created_at"] } } }, async (n) => {
  const { verifyWebhookSignature } = await import("creem/webhooks");
  const body = json({ id: `evt_invented${n}`, eventType: "checkout.completed", created_at: NOW * 1000, object: { id: `ch_invented${n}`, object: "checkout", status: "completed" } });
  const signature = hmac("creem_invented", body);
  return { body, headers: { "creem-signature": signature }, check: accepts((given) => verifyWebhookSignature(given, { "creem-signature": signature }, "creem_invented")), events: [{ theirs: "checkout.completed", topic: "checkout.completed", id: `evt_invented${n}`, resource_id: `ch_invented${n}` }] };
});

provider("modern-treasury", "modern-treasury 3.3.0", { secret: "mt-invented", scheme: { headers: ["X-Signature"], topics: { payment_order: "payment_order" }, event: { topic: ["header:X-Topic"], id: ["header:X-Webhook-Id"], resource_id: ["json:data.id"], data: ["json:data"] } } }, async (n) => {
  const ModernTreasury = require("modern-treasury").default;
  const client = new ModernTreasury({ apiKey: "x", organizationID: "x", webhookKey: "mt-invented" });
  const body = json({ event: "created", data: { id: `a1b2-${n}`, object: "payment_order", amount: 1990 * n } });
  const signature = client.webhooks.getSignature(body);
  return { body, headers: { "X-Signature": signature, "X-Topic": "payment_order", "X-Webhook-Id": `wh-${n}` }, check: (given) => client.webhooks.validateSignature(given, signature), events: [{ theirs: "payment_order", topic: "payment_order", id: `wh-${n}`, resource_id: `a1b2-${n}` }] };
});

provider("orb", "orb-billing 6.11.0", { secret: "orb invented secret", scheme: { headers: ["X-Orb-Signature"], list_sep: " ", pair_sep: "=", sig_keys: ["v1"], signed: "v1:{timestamp}:{body}", timestamp: "header:X-Orb-Timestamp", timestamp_unit: "rfc3339", dedupe: "id", event: { topic: ["json:type"], id: ["json:id"], resource_id: ["json:invoice.id"], data: ["json:invoice"], occurred: ["json:created_at"] } } }, (n) => {
  const Orb = require("orb-billing").default;
  const client = new Orb({ apiKey: "x", webhookSecret: "orb invented secret" });
  const at = "2023-11-14T22:13:20Z";
  const body = json({ id: `ev_invented${n}`, type: "invoice.issued", created_at: at, properties: {}, invoice: { id: `in_${n}`, total: "19.90" } });
  const headers = { "X-Orb-Timestamp": at, "X-Orb-Signature": client.webhooks.signPayload(body, { timestamp: at, secret: Buffer.from("orb invented secret") }) };
  return { body, headers, check: accepts((given) => client.webhooks.verifySignature(given, new Headers(headers), "orb invented secret")), events: [{ theirs: "invoice.issued", topic: "invoice.issued", id: `ev_invented${n}`, resource_id: `in_${n}` }] };
});

const standard = (name, source, verify, prefix = "webhook", preset = "standard-webhooks") =>
  provider(name, source, { secret: "whsec_aW52ZW50ZWQgc2VjcmV0IG9mIDI0IGJ5dGVzIQ==", ...(name === preset ? { preset } : { scheme: { extends: preset } }) }, async (n) => {
    const type = verify.type ?? (n === 1 ? "order.created" : "order.paid");
    const body = json(verify.body?.(n, type) ?? { type, timestamp: ISO, data: { id: `or_${n}`, total: `${n}9.90` } });
    const { Webhook } = require("standardwebhooks");
    const id = `msg_2invented${n}`;
    const headers = { [`${prefix}-id`]: id, [`${prefix}-timestamp`]: String(NOW), [`${prefix}-signature`]: new Webhook("whsec_aW52ZW50ZWQgc2VjcmV0IG9mIDI0IGJ5dGVzIQ==").sign(id, new Date(NOW * 1000), body) };
    return { body, headers, check: await verify(headers, "whsec_aW52ZW50ZWQgc2VjcmV0IG9mIDI0IGJ5dGVzIQ=="), events: [{ theirs: type, topic: verify.topic ?? type, id, resource_id: `or_${n}` }] };
  });
standard("standard-webhooks", "standardwebhooks 1.1.1", (headers, secret) => accepts((given) => new (require("standardwebhooks").Webhook)(secret).verify(given, headers)));
standard("svix", "svix 1.99.1", (headers, secret) => accepts((given) => new (require("svix").Webhook)(secret).verify(given, headers)), "svix", "svix");
standard("openai", "openai 6.49.0", Object.assign(async (headers, secret) => {
  const OpenAI = require("openai").default;
  const client = new OpenAI({ apiKey: "x", webhookSecret: secret });
  return accepts((given) => client.webhooks.verifySignature(given, new Headers(headers), secret));
}, { type: "response.completed", body: (n, type) => ({ object: "event", id: `evt_${n}`, type, created_at: NOW, data: { id: `or_${n}` } }) }));
standard("replicate", "replicate 1.4.0", Object.assign((headers, secret) => {
  const { validateWebhook } = require("replicate");
  return (given) => validateWebhook({ headers, body: given }, secret);
}, { type: "prediction.completed" }));
standard("resend", "resend 6.37.0", Object.assign((headers, secret) => {
  const { Resend } = require("resend");
  const client = new Resend("re_invented");
  return accepts((given) => client.webhooks.verify({ payload: given, headers: { id: headers["svix-id"], timestamp: headers["svix-timestamp"], signature: headers["svix-signature"] }, webhookSecret: secret }));
}, { type: "email.delivered" }), "svix", "svix");
standard("clerk", "@clerk/backend 3.20.1", Object.assign(async (headers, secret) => {
  const { verifyWebhook } = await import("@clerk/backend/webhooks");
  return accepts((given) => verifyWebhook(new Request("https://x.example", { method: "POST", body: given, headers }), { signingSecret: secret }));
}, { type: "user.created" }), "svix", "svix");
standard("dodopayments", "dodopayments 2.52.0", Object.assign((headers, secret) => {
  const Dodo = require("dodopayments").default;
  const client = new Dodo({ bearerToken: "x" });
  return accepts((given) => client.webhooks.unwrap(given, { headers, key: secret }));
}, { type: "payment.succeeded", body: (n, type) => ({ business_id: "bus_1", type, timestamp: ISO, data: { id: `or_${n}`, payload_type: "Payment" } }) }));
standard("lithic", "lithic 0.145.0", Object.assign((headers, secret) => {
  const Lithic = require("lithic").default;
  const client = new Lithic({ apiKey: "x" });
  return accepts((given) => client.webhooks.parse(given, { headers, secret }));
}, { type: "card.created", body: (n, type) => ({ event_type: type, type, data: { id: `or_${n}` } }) }));
standard("liveblocks", "@liveblocks/node 3.24.2", Object.assign((headers, secret) => {
  const { WebhookHandler } = require("@liveblocks/node");
  const handler = new WebhookHandler(secret);
  return accepts((given) => handler.verifyRequest({ headers, rawBody: given }));
}, { type: "commentCreated", topic: "comment.created", body: (n, type) => ({ type, data: { id: `or_${n}`, projectId: "p", roomId: "r", threadId: "t", commentId: "c", createdAt: ISO, createdBy: "u" } }) }));

// Others

provider("github", "@octokit/webhooks-methods 6.0.0", { preset: "github", secret: "github invented secret" }, async (n) => {
  const { sign, verify } = await import("@octokit/webhooks-methods");
  const body = json({ action: "opened", issue: { id: 73464126 + n, number: n, title: "An invented issue" }, repository: { id: 35129377, full_name: "example/project", updated_at: ISO }, sender: { login: "example" } });
  const signature = await sign("github invented secret", body);
  return { body, headers: { "X-GitHub-Event": "issues", "X-GitHub-Delivery": `72d3162e-cc78-11e3-81ab-4c9367dc095${n}`, "X-Hub-Signature-256": signature, "X-GitHub-Hook-ID": "292430182", "User-Agent": "GitHub-Hookshot/044aadd" }, check: (given) => verify("github invented secret", given, signature), events: [{ theirs: "issues", topic: "issues", id: `72d3162e-cc78-11e3-81ab-4c9367dc095${n}`, resource_id: String(73464126 + n) }] };
});

provider("slack", "@slack/bolt 5.1.0", { preset: "slack", secret: "slack0invented0signing0secret000" }, (n) => {
  const { verifySlackRequest } = require("@slack/bolt/dist/receivers/verify-request.js");
  const body = json({ token: "x", team_id: "T061EG9R6", api_app_id: "A0MDYCDME", event: { type: "message", user: "U061F7AUR", text: `hello ${n}`, ts: `${NOW}.00000${n}`, channel: "C0LAN2Q65" }, type: "event_callback", event_id: `Ev9UQ52YN${n}`, event_time: NOW });
  const headers = { "X-Slack-Request-Timestamp": String(NOW), "X-Slack-Signature": `v0=${hmac("slack0invented0signing0secret000", `v0:${NOW}:${body}`)}` };
  return { body, headers, check: accepts((given) => verifySlackRequest({ signingSecret: "slack0invented0signing0secret000", body: given, headers: { "x-slack-request-timestamp": NOW, "x-slack-signature": headers["X-Slack-Signature"] } })), events: [{ theirs: "message", topic: "message", id: `Ev9UQ52YN${n}`, resource_id: "C0LAN2Q65" }] };
});

provider("hubspot", "@hubspot/api-client 13.5.0", { preset: "hubspot", secret: "hubspot-invented-client-secret" }, (n, url) => {
  const { Signature } = require("@hubspot/api-client");
  const items = [1, 2].map((at) => ({ eventId: 1000 * n + at, subscriptionId: 12345, portalId: 62515, appId: 54321, occurredAt: NOW * 1000 + at, subscriptionType: at === 1 ? "contact.creation" : "deal.propertyChange", attemptNumber: 0, objectId: 1246965 + 10 * n + at, ...(at === 2 && { propertyName: "amount", propertyValue: "19.90" }) }));
  const body = json(items);
  const timestamp = NOW * 1000;
  const options = { clientSecret: "hubspot-invented-client-secret", requestBody: body, url, timestamp };
  const signature = Signature.getSignature("POST", "v3", options);
  return { body, headers: { "X-HubSpot-Signature-v3": signature, "X-HubSpot-Request-Timestamp": String(timestamp), "X-HubSpot-Signature": createHash("sha256").update(`hubspot-invented-client-secret${body}`).digest("hex"), "X-HubSpot-Signature-Version": "v1" }, check: (given) => Signature.isValid({ ...options, requestBody: given, signature, signatureVersion: "v3", method: "POST" }), events: items.map((one) => ({ theirs: one.subscriptionType, topic: one.subscriptionType === "contact.creation" ? "contact.created" : "deal.property_changed", id: String(one.eventId), resource_id: String(one.objectId) })) };
});

provider("twilio", "twilio 6.2.0", { preset: "twilio", secret: "twilioinventedauthtoken0123456789" }, (n, url) => {
  const { getExpectedTwilioSignature, validateRequest } = require("twilio/lib/webhooks/webhooks");
  const fields = { MessageSid: `SM0123456789abcdef0123456789abcde${n}`, SmsStatus: n === 1 ? "sent" : "delivered", MessageStatus: n === 1 ? "sent" : "delivered", To: "+15558675310", From: "+15017122661", AccountSid: "AC0123456789abcdef0123456789abcdef", ApiVersion: "2010-04-01" };
  const signature = getExpectedTwilioSignature("twilioinventedauthtoken0123456789", url, fields);
  const check = (given) => validateRequest("twilioinventedauthtoken0123456789", signature, url, Object.fromEntries(new URLSearchParams(given)));
  return { body: new URLSearchParams(fields).toString(), headers: { "Content-Type": "application/x-www-form-urlencoded; charset=utf-8", "X-Twilio-Signature": signature, "I-Twilio-Idempotency-Token": `0f1e2d3c-0000-4000-8000-00000000000${n}` }, check, events: [{ theirs: fields.MessageStatus, topic: n === 1 ? "message.sent" : "message.delivered", id: `0f1e2d3c-0000-4000-8000-00000000000${n}`, resource_id: fields.MessageSid }] };
});

provider("zendesk", "developer.zendesk.com/documentation/webhooks/verifying", { library: false, preset: "zendesk", secret: "zendesk-invented-signing-secret" }, (n) => {
  const at = "2023-11-14T22:13:20Z";
  const body = json({ type: "zen:event-type:ticket.created", account_id: 22129848, id: `2b24ef10-19a5-4ed9-0000-00000000000${n}`, time: at, zendesk_event_version: "2022-11-06", subject: `zen:ticket:515${n}`, detail: { id: `515${n}`, status: "OPEN", subject: "An invented ticket" }, event: {} });
  return { body, headers: { "X-Zendesk-Webhook-Signature": hmac("zendesk-invented-signing-secret", at + body, "base64"), "X-Zendesk-Webhook-Signature-Timestamp": at, "X-Zendesk-Webhook-Id": "01GHA8VFZ7Q0W0000000000000", "X-Zendesk-Webhook-Invocation-Id": `01INVOCATION${n}`, "X-Zendesk-Account-Id": "22129848" }, events: [{ theirs: "zen:event-type:ticket.created", topic: "ticket.created", id: `01INVOCATION${n}`, resource_id: `515${n}` }] };
});

provider("intercom", "developers.intercom.com/docs/webhooks", { library: false, preset: "intercom", secret: "intercom-invented-client-secret" }, (n) => {
  const body = json({ type: "notification_event", app_id: "a86dr8yl", data: { type: "notification_event_data", item: { type: "conversation", id: `20266870500026${n}`, state: "open" } }, links: {}, id: `notif_ccd8a4d0-f965-11e3-a367-c779cae3e1b${n}`, topic: n === 1 ? "conversation.user.created" : "conversation.user.replied", delivery_status: "pending", delivery_attempts: 1, delivered_at: 0, first_sent_at: NOW, created_at: NOW, self: null });
  return { body, headers: { "X-Hub-Signature": `sha1=${hmac("intercom-invented-client-secret", body, "hex", "sha1")}` }, events: [{ theirs: JSON.parse(body).topic, topic: JSON.parse(body).topic, id: `notif_ccd8a4d0-f965-11e3-a367-c779cae3e1b${n}`, resource_id: `20266870500026${n}` }] };
});

provider("contentful", "@contentful/node-apps-toolkit 3.16.1", { secret: "a".repeat(32) + "0123456789abcdef".repeat(2), scheme: { headers: ["x-contentful-signature"], signed: "{method}\n{path}\nx-contentful-signed-headers:{header:x-contentful-signed-headers};x-contentful-timestamp:{timestamp};x-contentful-topic:{header:x-contentful-topic}\n{body}", timestamp: "header:x-contentful-timestamp", timestamp_unit: "ms", event: { topic: ["header:x-contentful-topic"], id: [], resource_id: ["json:sys.id"], data: ["body"], occurred: ["json:sys.updatedAt"] } } }, (n, url) => {
  const { signRequest, verifyRequest } = require("@contentful/node-apps-toolkit");
  const secret = "a".repeat(32) + "0123456789abcdef".repeat(2);
  const path = new URL(url).pathname;
  const body = json({ sys: { type: "Entry", id: `entry${n}`, updatedAt: ISO }, fields: { title: { "en-US": `Title ${n}` } } });
  const topic = "ContentManagement.Entry.publish";
  const signed = signRequest(secret, { method: "POST", path, headers: { "x-contentful-topic": topic }, body }, NOW * 1000);
  const headers = { "X-Contentful-Topic": topic, ...signed };
  const check = (given) => verifyRequest(secret, { method: "POST", path, headers: { "x-contentful-topic": topic, ...signed }, body: given }, 0);
  return { body, headers, check, events: [{ theirs: topic, topic: "contentmanagement.entry.published", id: "", resource_id: `entry${n}` }] };
});

provider("sanity", "@sanity/webhook 4.0.4", { secret: "sanity invented", scheme: { headers: ["sanity-webhook-signature"], encoding: "base64url", list_sep: ",", pair_sep: "=", sig_keys: ["v1"], signed: "{timestamp}.{body}", timestamp: "sig:t", timestamp_unit: "ms", event: { topic: ["header:sanity-operation"], id: ["header:idempotency-key"], resource_id: ["json:_id"], data: ["body"], occurred: ["json:_updatedAt"] } } }, async (n) => {
  const { encodeSignatureHeader, isValidSignature } = require("@sanity/webhook");
  const body = json({ _id: `doc${n}`, _type: "article", title: `Title ${n}`, _updatedAt: ISO });
  const signature = await encodeSignatureHeader(body, NOW * 1000, "sanity invented");
  return { body, headers: { "sanity-webhook-signature": signature, "sanity-operation": "update", "idempotency-key": `key-${n}`, "sanity-webhook-id": "w1" }, check: (given) => isValidSignature(given, signature, "sanity invented"), events: [{ theirs: "update", topic: "update", id: `key-${n}`, resource_id: `doc${n}` }] };
});

provider("linear", "@linear/sdk 98.0.0", { secret: "lin_wh_invented", scheme: { headers: ["Linear-Signature"], timestamp: "json:webhookTimestamp", timestamp_unit: "ms", event: { topic: ["header:Linear-Event"], id: ["header:Linear-Delivery"], resource_id: ["json:data.id"], data: ["json:data"], occurred: ["json:createdAt"] } } }, async (n) => {
  const { LinearWebhookClient } = require("@linear/sdk/webhooks");
  const client = new LinearWebhookClient("lin_wh_invented");
  const body = json({ action: "create", type: "Issue", createdAt: ISO, data: { id: `2174add1-f7c8-44e3-bbf3-2d60b5ea8bc${n}`, title: "An invented issue" }, url: "https://linear.example", organizationId: "o1", webhookTimestamp: NOW * 1000, webhookId: "w1" });
  const signature = hmac("lin_wh_invented", body);
  return { body, headers: { "Linear-Signature": signature, "Linear-Event": "Issue", "Linear-Delivery": `234d1a4e-b617-4388-90fe-adc3633d6b7${n}` }, check: async (given) => { try { return await client.verify(Buffer.from(given), signature, NOW * 1000); } catch { return false; } }, events: [{ theirs: "Issue", topic: "issue", id: `234d1a4e-b617-4388-90fe-adc3633d6b7${n}`, resource_id: `2174add1-f7c8-44e3-bbf3-2d60b5ea8bc${n}` }] };
});

provider("mux", "@mux/mux-node 15.3.0", { secret: "mux-invented", scheme: { headers: ["Mux-Signature"], list_sep: ",", pair_sep: "=", sig_keys: ["v1"], signed: "{timestamp}.{body}", timestamp: "sig:t", dedupe: "id", event: { topic: ["json:type"], id: ["json:id"], resource_id: ["json:object.id"], data: ["json:data"], occurred: ["json:created_at"] } } }, async (n) => {
  const Mux = require("@mux/mux-node").default;
  const client = new Mux({ tokenId: "x", tokenSecret: "x", webhookSecret: "mux-invented" });
  const body = json({ type: "video.asset.ready", id: `3a56ac3d-33da-4366-855b-f592d898409${n}`, created_at: ISO, object: { type: "asset", id: `0201p02fGKPE7MrbC269XRD7LpcHhrmbu0002${n}` }, data: { status: "ready", id: `0201p02fGKPE7MrbC269XRD7LpcHhrmbu0002${n}` } });
  const header = `t=${NOW},v1=${hmac("mux-invented", `${NOW}.${body}`)}`;
  return { body, headers: { "Mux-Signature": header }, check: accepts((given) => client.webhooks.verifySignature(given, { "mux-signature": header }, "mux-invented")), events: [{ theirs: "video.asset.ready", topic: "video.asset.ready", id: `3a56ac3d-33da-4366-855b-f592d898409${n}`, resource_id: `0201p02fGKPE7MrbC269XRD7LpcHhrmbu0002${n}` }] };
});

provider("line", "@line/bot-sdk 11.0.0", { secret: "line-invented-channel-secret", scheme: { headers: ["x-line-signature"], encoding: "base64", batch: "json:events", dedupe: "id", event: { topic: ["json:type"], id: ["json:webhookEventId"], resource_id: ["json:source.userId"], data: ["body"], occurred: ["json:timestamp"] } } }, async (n) => {
  const { validateSignature } = await import("@line/bot-sdk");
  const body = json({ destination: "xxxxxxxxxx", events: [{ type: "message", webhookEventId: `01FZ74A0TDDPYRVKNK77XKC3Z${n}`, timestamp: NOW * 1000, source: { type: "user", userId: "U4af4980629" }, message: { type: "text", id: `44${n}`, text: "hello" } }] });
  const signature = hmac("line-invented-channel-secret", body, "base64");
  return { body, headers: { "x-line-signature": signature }, check: (given) => validateSignature(given, "line-invented-channel-secret", signature), events: [{ theirs: "message", topic: "message", id: `01FZ74A0TDDPYRVKNK77XKC3Z${n}`, resource_id: "U4af4980629" }] };
});

provider("pusher", "pusher 5.3.4", { secret: "pusher-invented", scheme: { headers: ["X-Pusher-Signature"], batch: "json:events", event: { topic: ["json:name"], id: [], resource_id: ["json:channel"], data: ["body"] } } }, (n) => {
  const Pusher = require("pusher");
  const client = new Pusher({ appId: "1", key: "k", secret: "pusher-invented" });
  const body = json({ time_ms: NOW * 1000, events: [{ name: "channel_occupied", channel: `presence-room-${n}` }] });
  const signature = hmac("pusher-invented", body);
  return { body, headers: { "Content-Type": "application/json", "X-Pusher-Key": "k", "X-Pusher-Signature": signature }, check: (given) => client.webhook({ headers: { "content-type": "application/json", "x-pusher-key": "k", "x-pusher-signature": signature }, rawBody: given }).isValid(), events: [{ theirs: "channel_occupied", topic: "channel.occupied", id: "", resource_id: `presence-room-${n}` }] };
});

provider("box", "box-typescript-sdk-gen 1.19.1", { secret: "box-invented-primary", scheme: { headers: ["box-signature-primary", "box-signature-secondary"], encoding: "base64", signed: "{body}{timestamp}", timestamp: "header:box-delivery-timestamp", timestamp_unit: "rfc3339", event: { topic: ["json:trigger"], id: ["header:box-delivery-id"], resource_id: ["json:source.id"], data: ["json:source"], occurred: ["json:created_at"] } } }, async (n) => {
  const { WebhooksManager } = require("box-typescript-sdk-gen/lib/managers/webhooks.generated");
  const at = "2023-11-14T22:13:20+00:00";
  const body = json({ type: "webhook_event", id: `eb0c4e06-751f-442c-86f8-fd5bb404dbe${n}`, created_at: at, trigger: "FILE.UPLOADED", webhook: { id: "53" }, source: { type: "file", id: `7358676624${n}`, name: "invented.txt" } });
  const headers = { "box-delivery-id": `f96bb54b-ee16-4fc5-aa65-8c2d9e5b546${n}`, "box-delivery-timestamp": at, "box-signature-algorithm": "HmacSHA256", "box-signature-version": "1", "box-signature-primary": hmac("box-invented-primary", body + at, "base64"), "box-signature-secondary": hmac("box-invented-secondary", body + at, "base64") };
  return { body, headers, check: (given) => WebhooksManager.validateMessage(given, headers, "box-invented-primary", { secondaryKey: undefined, maxAge: 600 }), events: [{ theirs: "FILE.UPLOADED", topic: "file.uploaded", id: `f96bb54b-ee16-4fc5-aa65-8c2d9e5b546${n}`, resource_id: `7358676624${n}` }] };
});

provider("workos", "@workos-inc/node 8.13.0", { secret: "workos-invented", scheme: { headers: ["WorkOS-Signature"], list_sep: ",", pair_sep: "=", sig_keys: ["v1"], signed: "{timestamp}.{body}", timestamp: "sig:t", timestamp_unit: "ms", dedupe: "id", event: { topic: ["json:event"], id: ["json:id"], resource_id: ["json:data.id"], data: ["json:data"], occurred: ["json:created_at"] } } }, async (n) => {
  const { WorkOS } = require("@workos-inc/node");
  const client = new WorkOS("sk_invented");
  const value = { id: `event_01invented${n}`, event: "user.created", created_at: ISO, data: { object: "user", id: `user_01invented${n}`, email: "ada@example.com", email_verified: true, first_name: "Ada", last_name: "Sample", created_at: ISO, updated_at: ISO } };
  const body = json(value);
  const at = String(NOW * 1000);
  const signature = await client.webhooks.computeSignature(at, value, "workos-invented");
  const header = `t=${at}, v1=${signature}`;
  return { body, headers: { "WorkOS-Signature": header }, check: accepts((given) => client.webhooks.verifyHeader({ payload: JSON.parse(given), sigHeader: header, secret: "workos-invented" })), events: [{ theirs: "user.created", topic: "user.created", id: `event_01invented${n}`, resource_id: `user_01invented${n}` }] };
});

provider("plivo", "plivo 4.79.0", { secret: "plivo-invented-auth-token", scheme: { headers: ["X-Plivo-Signature-V3"], encoding: "base64", list_sep: ",", signed: "{url}?{form_sorted}.{header:X-Plivo-Signature-V3-Nonce}", event: { topic: ["form:Event"], id: [], resource_id: ["form:CallUUID"], data: ["form"] } } }, (n, url) => {
  const { validateV3Signature } = require("plivo");
  const fields = { CallUUID: `1234-${n}`, Event: "Hangup", From: "15550100", To: "15550101" };
  const nonce = `0543611111111111111${n}`;
  const sorted = Object.keys(fields).sort().map((key) => key + fields[key]).join("");
  const signature = hmac("plivo-invented-auth-token", `${url}?${sorted}.${nonce}`, "base64");
  return { body: new URLSearchParams(fields).toString(), headers: { "Content-Type": "application/x-www-form-urlencoded", "X-Plivo-Signature-V3": signature, "X-Plivo-Signature-V3-Nonce": nonce }, check: (given) => validateV3Signature("POST", url, nonce, "plivo-invented-auth-token", signature, Object.fromEntries(new URLSearchParams(given))), events: [{ theirs: "Hangup", topic: "hangup", id: "", resource_id: `1234-${n}` }] };
});

provider("onfido", "@onfido/api 6.2.0", { secret: "onfido-invented-token", scheme: { headers: ["X-SHA2-Signature"], event: { topic: ["json:payload.action"], id: [], resource_id: ["json:payload.object.id"], data: ["json:payload.object"], occurred: ["json:payload.object.completed_at_iso8601"] } } }, (n) => {
  const { WebhookEventVerifier } = require("@onfido/api");
  const verifier = new WebhookEventVerifier("onfido-invented-token");
  const body = json({ payload: { resource_type: "check", action: "check.completed", object: { id: `12343-12345-1234${n}`, status: "complete", completed_at_iso8601: ISO, href: "https://api.example" } } });
  const signature = hmac("onfido-invented-token", body);
  return { body, headers: { "X-SHA2-Signature": signature }, check: accepts((given) => verifier.readPayload(given, signature)), events: [{ theirs: "check.completed", topic: "check.completed", id: "", resource_id: `12343-12345-1234${n}` }] };
});

provider("easypost", "@easypost/api 8.9.0", { secret: "easypost invented", scheme: { headers: ["X-Hmac-Signature"], pair_sep: "=", sig_keys: ["hmac-sha256-hex"], event: { topic: ["json:description"], id: ["json:id"], resource_id: ["json:result.id"], data: ["json:result"], occurred: ["json:created_at"] } } }, (n) => {
  const EasyPost = require("@easypost/api");
  const client = new (EasyPost.default ?? EasyPost)("x");
  const body = json({ id: `evt_invented${n}`, object: "Event", description: "tracker.updated", created_at: ISO, result: { id: `trk_invented${n}`, object: "Tracker", status: "delivered" } });
  const signature = `hmac-sha256-hex=${hmac("easypost invented", body)}`;
  return { body, headers: { "X-Hmac-Signature": signature }, check: accepts((given) => client.Utils.validateWebhook(Buffer.from(given), { "X-Hmac-Signature": signature }, "easypost invented")), events: [{ theirs: "tracker.updated", topic: "tracker.updated", id: `evt_invented${n}`, resource_id: `trk_invented${n}` }] };
});

provider("hookdeck", "@hookdeck/sdk 0.4.0", { secret: "hookdeck-invented", scheme: { headers: ["x-hookdeck-signature", "x-hookdeck-signature-2"], encoding: "base64", event: { topic: ["json:type"], id: ["header:x-hookdeck-eventid"], resource_id: ["json:order.id"], data: ["json:order"] } } }, async (n) => {
  const { verifyWebhookSignature } = require("@hookdeck/sdk/webhooks/helpers");
  const body = json({ type: "order.created", order: { id: `or_${n}`, total: "19.90" } });
  const headers = { "x-hookdeck-eventid": `evt_invented${n}`, "x-hookdeck-signature": hmac("hookdeck-invented", body, "base64") };
  return { body, headers, check: async (given) => (await verifyWebhookSignature({ headers, rawBody: given, signingSecret: "hookdeck-invented", config: { checkSourceVerification: false } })).isValidSignature, events: [{ theirs: "order.created", topic: "order.created", id: `evt_invented${n}`, resource_id: `or_${n}` }] };
});

let failed = 0;
for (const { name, source, make, ...rest } of providers) {
  const url = `https://hooks.example.com/webhooks/${name}`;
  const messages = [];
  try {
    for (const n of [1, 2]) {
      const { headers, body, events, query, check } = await make(n, url);
      if (rest.library === false ? check : !check) throw new Error("a library has to check it, or library is false");
      if (check && (await check(body)) !== true) throw new Error("the library refuses it");
      const changed = body.replace(/[0-9](?=[^0-9]*$)/, (digit) => String((Number(digit) + 1) % 10));
      if (check && !rest.unsigned_body && !(await throws(async () => (await check(changed)) || Promise.reject())))
        throw new Error("the library accepts a changed one");
      messages.push({ ...(query && { query }), headers: { "Content-Type": "application/json", ...headers }, body, events });
    }
  } catch (error) {
    failed += 1;
    console.log(`${name}: ${error.stack?.split("\n").slice(0, 3).join(" | ")}`);
    continue;
  }
  const { library = true, unsigned_body = false, ...fields } = rest;
  writeFileSync(`${folder}/${name}.json`, `${JSON.stringify({ provider: name, source, library, unsigned_body, url, signed_at: NOW, ...fields, messages }, null, 1)}\n`);
}
console.log(`${providers.length - failed} of ${providers.length} written`);
process.exit(failed ? 1 : 0);
