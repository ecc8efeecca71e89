"""Plugin code as a type checker sees it. `expect:` is what mypy must say of a line; of others, nothing."""

from decimal import Decimal

from pydantic import BaseModel

from storehooks import Busy, Context, Drop, Event, Fail, Retry, Router
from storehooks.records import Order
from storehooks.testing import make_context, make_event


class Settings(BaseModel):
    level: int = 5


router = Router("shop", settings=Settings)
part = Router()
router.include(part)


class Crm:
    def add(self, customer: int, points: int, *, key: str) -> int:
        return points + len(key)


@router.startup
def connect(settings: Settings) -> Crm:
    return Crm()


@router.shutdown
def close(crm: Crm) -> None:
    pass


def is_large(event: Event) -> bool:
    return bool(event.data["total"])


@router.on("order.paid", when=is_large, retries=(10, 60), timeout=30, limit="crm", delay="10m")
def award(event: Event, ctx: Context[Settings]) -> str:
    reveal_type(ctx.settings.level)  # expect: Revealed type is "int"
    reveal_type(ctx.once("points", Crm().add, 1, 42, key=ctx.key("points")))  # expect: Revealed type is "int"
    reveal_type(event.record)  # expect: Revealed type is "receiver.contract.records.Record | None"
    event.record.total  # expect: Item "Record" of "Record | None" has no attribute "total"
    if isinstance(event.record, Order):
        reveal_type(event.record.total)  # expect: Revealed type is "decimal.Decimal"
    if event.occurred_at is None:
        raise Retry("no time yet", after=60)
    if ctx.stopping:
        raise Busy("stopping", after=1)
    if ctx.attempt > 3:
        raise Fail("enough")
    ctx.settings.levle  # expect: "Settings" has no attribute "levle"; maybe "level"?
    ctx.once("points", len, "x", scope="world")  # expect: Argument "scope" to "once" of "Context"
    raise Drop("done")


@part.on("order.*", when={"total": "> 100", "status": ["paid", "open"], "test": None})
def untyped_settings(event: Event, ctx: Context) -> Decimal:
    ctx.settings.anything.goes  # a namespace, where the plugin has no model
    return Decimal(event.data["total"])


@router.on("order.*")
def calls_the_store(event: Event, ctx: Context) -> None:
    order = ctx.api.orders.update_status(1001, status="paid")
    reveal_type(order)  # expect: Revealed type is "receiver.contract.records.Order"
    products = ctx.api.products
    reveal_type(products.list(status="live"))  # expect: storeapi.pages.Pages[receiver.contract.records.Product]
    products.set_inventory(7, stock=12, warehouse="north")  # a field that only this store has
    products.set_inventory(7, stock="12")  # expect: Argument "stock" to "set_inventory" of "Products" has incompatible
    products.create(name="Mug")  # expect: Missing named argument "price" for "create" of "Products"
    ctx.api.orders.update_status(status="paid")  # expect: Missing positional argument "id" in call to "update_status"
    ctx.api.orders.refund(1001, amount="5.00")  # an operation that config adds


@router.on("order.*")  # expect: Value of type variable "F" of function cannot be
def one_argument(event: Event) -> None:
    pass


@router.on("order.*", retriess=5)  # expect: Unexpected keyword argument "retriess" for "on" of "Router"
def wrong_option(event: Event, ctx: Context) -> None:
    pass


@router.on("order.*", retries="5")  # expect: Argument "retries" to "on" of "Router" has incompatible type "str"
def wrong_retries(event: Event, ctx: Context) -> None:
    pass


def test_award() -> None:
    context = make_context(settings=Settings(level=3))
    reveal_type(award(make_event("order.paid"), context))  # expect: Revealed type is "str"
