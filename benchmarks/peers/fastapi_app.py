"""A FastAPI receiver for uvicorn that enqueues arq jobs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from fastapi import FastAPI, HTTPException, Request

from benchmarks.peers.signature import is_genuine

SEVEN_DAYS = 7 * 24 * 3600


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    path = os.environ["BENCH_REDIS"].removeprefix("unix://")
    app.state.redis = await create_pool(RedisSettings(unix_socket_path=path))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/webhooks/{store}")
async def receive(store: str, request: Request) -> dict[str, Any]:
    if not is_genuine(request.headers, await request.body()):
        raise HTTPException(401)
    message_id = request.headers["webhook-id"]
    redis = request.app.state.redis
    if not await redis.set(f"seen:{store}:{message_id}", 1, nx=True, ex=SEVEN_DAYS):
        return {"status": "duplicate"}
    await redis.enqueue_job("handle", {"id": message_id, "store": store, "payload": await request.json()})
    return {"status": "accepted"}
