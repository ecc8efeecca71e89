"""Customer welcome: a while after a customer was created, say so in the store's own record of the customer.

The delay is kept by the inbox: no process waits, and a restart forgets nothing. Who left in the meantime, or was
welcomed already, is not welcomed.
"""

from pydantic import BaseModel

from workers import Context, Drop, Event, Fail, Router
from workers.storeapi.errors import ResourceNotFound

__version__ = "1.0.0"


class Settings(BaseModel):
    text: str = "Welcome, {name}!"
    """What is written into the customer's metadata, for the shop's mails to use."""


router = Router("customer_welcome", settings=Settings)


@router.on("customer.created", when={"email": "*"}, delay="10m", retries=(60, 600, 3600), timeout=30)
def welcome(event: Event, ctx: Context[Settings]) -> str:
    number = event.resource_id
    if not number:
        raise Fail("the customer has no id")
    try:
        customer = ctx.api.customers.get(number)
    except ResourceNotFound:
        raise Drop("the customer has left") from None
    known = customer.get("metadata") or {}
    if "welcome" in known:
        return f"customer {number} was welcomed before"
    # Setting the same words twice is as good as once, so this needs no ctx.once.
    text = ctx.settings.text.replace("{name}", str(customer.get("name") or "friend"))
    ctx.api.customers.update_metadata(number, metadata={"welcome": text})
    return f"welcomed customer {number}"
