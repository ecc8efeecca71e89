import http.server
import json
import threading

import pytest
from stock_alert import Settings, watch

from storehooks import Drop, Retry
from storehooks.testing import make_context, make_event


def run(stock, after=None, **settings):
    event = make_event("product.updated", {"id": 17, "name": "Mug"})
    ctx = make_context(
        event, settings=Settings(**settings), api={"products.get_inventory": {"id": 17, "stock": stock}}, after=after
    )
    return watch(event, ctx), ctx


def test_one_alert_for_each_fall():
    result, first = run(3)
    assert result == "alert: 3 left of Mug"
    assert first.logged == ["WARNING stock of product 17 is 3, below 5"]
    result, second = run(2, after=first)
    assert (result, second.once_calls) == ("alert: 3 left of Mug", [])
    result, third = run(9, after=second)
    assert result == "recovered"
    result, fourth = run(1, after=third)
    assert (result, len(fourth.once_calls)) == ("alert: 1 left of Mug", 1)


def test_enough_stock_sends_no_alert():
    result, ctx = run(5)
    assert (result, ctx.once_calls, ctx.logged) == ("enough", [], [])
    assert run(5, level=6)[0] == "alert: 5 left of Mug"


def test_a_deleted_product_is_dropped(store):
    event = make_event("product.updated", {"id": 4711})
    with pytest.raises(Drop, match="was deleted"):
        watch(event, make_context(event, settings=Settings(), api=store.client))


def test_the_stock_is_read_from_the_store_and_the_alert_is_posted(store):
    received = []

    class Target(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store.client.products.set_inventory(1, stock=2)
    event = make_event("product.updated", {"id": 1, "stock": 100})  # a late event: its stock is outdated
    settings = Settings(url=f"http://127.0.0.1:{server.server_address[1]}/")
    assert watch(event, make_context(event, settings=settings, api=store.client)).startswith("alert: 2 left")
    assert [(alert["product"], alert["stock"], alert["level"]) for alert in received] == [("1", 2, 5)]
    server.shutdown()
    server.server_close()
    again = make_event("product.updated", {"id": 1})
    with pytest.raises(Retry):
        watch(again, make_context(again, settings=settings, api=store.client))
