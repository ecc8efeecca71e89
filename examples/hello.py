"""A minimal plugin with two handlers: one for orders, one for all events."""

from storehooks import Context, Event, Router

router = Router("hello")
seen = 0


@router.on("order.*")
def greet(event: Event, ctx: Context) -> str:
    total = event.data.get("total", "no total")  # each store has its own names; event.record has the same for all
    return f"{ctx.settings.greeting} for order {event.resource_id}, {total}"


@router.on("*")
def count(event: Event, ctx: Context) -> str:
    global seen  # each child process has its own count
    seen += 1
    return f"{seen} so far in this process"
