"""A crowd of callers: one process of several, each with several threads, all starting at the same moment.

python -m tests.support.many_callers CONFIG THREADS CALLS GO   waits until the file GO exists, then prints what happened
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from receiver import config as config_room
from receiver.inbox import connect
from workers.storeapi import ApiError, client_for_store


def main(config_file: str, threads: int, calls: int, go: str) -> None:
    config = config_room.load(Path(config_file), {})
    client = client_for_store(config, "demo", connect(config.redis.url, timeout=5.0), timeout=110)
    done: list[str] = []

    def work() -> None:
        for _ in range(calls):
            try:
                done.append(client.products.get(1).name)
            except ApiError as error:
                done.append(f"error: {error}")

    crowd = [threading.Thread(target=work) for _ in range(threads)]
    Path(f"{go}.ready.{threading.get_native_id()}").touch()
    while not Path(go).exists():
        time.sleep(0.002)
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    errors = [one for one in done if one.startswith("error")]
    print(json.dumps({"ok": len(done) - len(errors), "errors": errors[:3]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
