"""Stock alert: sends one alert when a product's stock falls below a level, and the next only after it has recovered.

The handler reads the stock from the store's API, not from the event, because events can be late and out of order.
"""

import json
import urllib.request
from typing import Any

from pydantic import BaseModel, Field

from storehooks import Context, Drop, Event, Retry, Router
from storehooks.errors import ResourceNotFound

__version__ = "1.0.0"


class Settings(BaseModel):
    level: int = Field(default=5, ge=0)
    """An alert is sent if the stock is below this level."""
    url: str = ""
    """The alert is posted here as JSON. Without a URL it is written to the log."""


router = Router("stock_alert", settings=Settings)


# With order_by, only one run at a time reads and writes the state of a product.
@router.on("product.created", "product.updated", order_by="resource", retries=(10, 60, 300), timeout=30)
def watch(event: Event, ctx: Context[Settings]) -> str:
    product = event.resource_id
    try:
        stock = int(ctx.api.products.get_inventory(product)["stock"])
    except ResourceNotFound:
        ctx.state.delete(f"low {product}")
        raise Drop("the product was deleted") from None
    fall = int(ctx.state.get(f"falls {product}", 0))
    if stock >= ctx.settings.level:
        return _recovered(ctx, product, fall)
    # The key contains the number of the fall: a later run for the same fall, or a repeated one, sends no second alert.
    alert: str = ctx.once(f"fall {fall}", _alert, event, ctx, stock, scope="resource")
    ctx.state.set(f"low {product}", stock)
    return alert


def _recovered(ctx: Context[Settings], product: str, fall: int) -> str:
    if ctx.state.get(f"low {product}") is not None:
        ctx.state.set(f"falls {product}", fall + 1)
        ctx.state.delete(f"low {product}")
        return "recovered"
    return "enough"


def _alert(event: Event, ctx: Context[Settings], stock: int) -> str:
    payload: dict[str, Any] = {
        "store": ctx.store,
        "product": event.resource_id,
        "name": event.data.get("name", ""),
        "stock": stock,
        "level": ctx.settings.level,
    }
    if ctx.settings.url:
        _post(ctx.settings.url, payload, key=ctx.key(f"alert {stock}"))
    else:
        ctx.log.warning("stock of product %s is %s, below %s", payload["product"], stock, ctx.settings.level)
    return f"alert: {stock} left of {payload['name'] or payload['product']}"


def _post(url: str, payload: dict[str, Any], *, key: str) -> None:
    headers = {"content-type": "application/json", "idempotency-key": key}
    request = urllib.request.Request(url, json.dumps(payload).encode(), headers, method="POST")  # noqa: S310  the URL is from the config
    try:
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310
            pass
    except OSError as error:
        raise Retry(f"the alert was not delivered: {error}") from None
