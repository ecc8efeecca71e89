"""Customer welcome: ten minutes after a customer was created, writes a welcome text into the customer's metadata.

The run waits in the inbox: it occupies no process and survives restarts. A customer who was deleted in the meantime, or
who already has a welcome text, is skipped.
"""

from pydantic import BaseModel

from storehooks import Context, Drop, Event, Fail, Router
from storehooks.errors import ResourceNotFound

__version__ = "1.0.0"


class Settings(BaseModel):
    text: str = "Welcome, {name}!"
    """Written into the customer's metadata, where the store's emails can use it."""


router = Router("customer_welcome", settings=Settings)


@router.on("customer.created", when={"email": "*"}, delay="10m", retries=(60, 600, 3600), timeout=30)
def welcome(event: Event, ctx: Context[Settings]) -> str:
    number = event.resource_id
    if not number:
        raise Fail("the customer has no id")
    try:
        customer = ctx.api.customers.get(number)
    except ResourceNotFound:
        raise Drop("the customer was deleted") from None
    metadata = customer.get("metadata") or {}
    if "welcome" in metadata:
        return f"customer {number} was already welcomed"
    # Setting the same value twice is idempotent, so this needs no ctx.once.
    text = ctx.settings.text.replace("{name}", str(customer.get("name") or "friend"))
    ctx.api.customers.update_metadata(number, metadata={"welcome": text})
    return f"welcomed customer {number}"
