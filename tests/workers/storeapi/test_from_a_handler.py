"""A handler reads the record of its event and writes to the store's API, in the real pipeline."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.harness import System
from tests.workers.conftest import AUTH, SandboxRun

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def comment(event, ctx):
    made = ctx.api.products.create(name="Mug", price="4.50")
    return f"{event.record.total + 1} {ctx.api.products.get(made.id).name}"
"""


def test_a_handler_uses_ctx_api_and_event_record(
    make_system: Callable[..., System], make_sandbox: Callable[..., SandboxRun]
) -> None:
    sandbox = make_sandbox("--no-shopper")
    own = f'base_url = "http://127.0.0.1:{sandbox.port}"\nallow_private = true\nauth = {AUTH}\n'
    system = make_system(plugin=PLUGIN)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[stores.north]\n", f"[stores.north]\n{own}"))
    system.start("worker", "housekeeper")
    event_id = system.accept("order.created", data={"id": 1, "total": "42.00"})
    assert system.settled(event_id) == "settled", system.run_of(event_id, "shop.comment").error
    assert system.run_of(event_id, "shop.comment").result == "43.00 Mug"
