"""A receiver as in a tutorial: Flask, a sync worker, a duplicate mark, `Queue.enqueue`; and an empty Flask app."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, abort, request
from redis import Redis
from rq import Queue

from benchmarks.peers.signature import is_genuine

app = Flask(__name__)
redis = Redis.from_url(os.environ["BENCH_REDIS"])
queue = Queue(connection=redis)
HANDLER = os.environ.get("BENCH_HANDLER", "handle")
SEVEN_DAYS = 7 * 24 * 3600


@app.post("/webhooks/<store>")
def receive(store: str) -> Any:
    if not is_genuine(request.headers, request.get_data()):  # type: ignore[arg-type]
        abort(401)
    message_id = request.headers["webhook-id"]
    if not redis.set(f"seen:{store}:{message_id}", 1, nx=True, ex=SEVEN_DAYS):
        return {"status": "duplicate"}
    event = {"id": message_id, "store": store, "payload": request.get_json()}
    queue.enqueue(f"benchmarks.peers.run_counter.{HANDLER}", event)
    return {"status": "accepted"}


hello = Flask("hello")


@hello.post("/webhooks/<_store>")
def say_hello(_store: str) -> Any:
    return {"status": "accepted"}
