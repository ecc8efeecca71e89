"""A minimal plugin with two handlers: one for orders, one for all events."""

from storehooks import Context, Event, Router

router = Router("hello")
seen = 0


@router.on("order.*")
def greet(event: Event, ctx: Context) -> str:
    order = event.data
    return f"{ctx.settings.greeting} for order {order['id']}, {order['total']}"


@router.on("*")
def count(event: Event, ctx: Context) -> str:
    global seen  # each child process has its own count
    seen += 1
    return f"{seen} so far in this process"
