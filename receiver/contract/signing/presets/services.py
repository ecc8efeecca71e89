"""Presets of services that are not shops. Only data; the comment above a preset names its source."""

from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.presets import preset_topics as topics

# Not a store, but many stores copy this form. The older X-Hub-Signature is SHA-1 and is not read.
GITHUB = Scheme(
    name="github",
    headers=("X-Hub-Signature-256",),
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

# @hubspot/api-client 13.5 (npm), signature v3. The older X-HubSpot-Signature, SHA-256(secret + ...), is not read.
# A retry changes `attemptNumber` of its events, so their ids decide.
HUBSPOT = Scheme(
    name="hubspot",
    headers=("X-HubSpot-Signature-v3",),
    encoding="base64",
    signed="{method}{url}{body}{timestamp}",
    timestamp="header:X-HubSpot-Request-Timestamp",
    timestamp_unit="ms",
    batch="body",
    dedupe="id",
    event=Sources(
        topic=("json:subscriptionType",),
        id=("json:eventId",),
        resource_id=("json:objectId", "json:fromObjectId"),
        data=("body",),
        occurred=("json:occurredAt",),
        store=("json:portalId",),
    ),
    topics=topics.HUBSPOT,
)

# twilio 6.2 (npm), signed with the account's token. The URL is signed as it is entered at Twilio, its query included.
TWILIO = Scheme(
    name="twilio",
    headers=("X-Twilio-Signature",),
    algorithm="hmac-sha1",
    encoding="base64",
    signed="{url}{form_sorted}",
    event=Sources(
        topic=("form:MessageStatus", "form:SmsStatus", "form:CallStatus", "const:request.received"),
        id=("header:I-Twilio-Idempotency-Token",),
        resource_id=("form:MessageSid", "form:SmsSid", "form:CallSid"),
        data=("form",),
        occurred=("form:Timestamp",),
        store=("form:AccountSid",),
    ),
    topics=topics.TWILIO,
)

# developer.zendesk.com/documentation/webhooks/verifying. The webhook of a trigger has any body, even one with the id of
# a ticket: so the id is that of the invocation, and a body without a type has the topic of triggers.
ZENDESK = Scheme(
    name="zendesk",
    headers=("X-Zendesk-Webhook-Signature",),
    encoding="base64",
    signed="{timestamp}{body}",
    timestamp="header:X-Zendesk-Webhook-Signature-Timestamp",
    timestamp_unit="rfc3339",
    event=Sources(
        topic=("json:type", "const:trigger.fired"),
        id=("header:X-Zendesk-Webhook-Invocation-Id",),
        resource_id=("json:detail.id", "json:id"),
        data=("json:detail", "body"),
        occurred=("json:time",),
        store=("json:account_id",),
    ),
    topics=topics.ZENDESK,
)

# developers.intercom.com/docs/webhooks. A retry changes `delivery_attempts`, so the id alone decides.
INTERCOM = Scheme(
    name="intercom",
    headers=("X-Hub-Signature",),
    algorithm="hmac-sha1",
    pair_sep="=",
    sig_keys=("sha1",),
    dedupe="id",
    event=Sources(
        topic=("json:topic",),
        id=("json:id",),
        resource_id=("json:data.item.id",),
        data=("json:data.item",),
        occurred=("json:created_at",),
        store=("json:app_id",),
    ),
)

PRESETS = (GITHUB, SLACK, HUBSPOT, TWILIO, ZENDESK, INTERCOM)
