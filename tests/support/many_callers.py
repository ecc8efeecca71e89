"""One of several processes that call a store from several threads, all starting at the same moment.

python -m tests.support.many_callers CONFIG THREADS CALLS GO   waits until the file GO exists, then prints the results
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from receiver import config as config_room
from receiver.inbox import connect
from workers.processes import die_with_parent
from workers.storeapi import ApiError, client_for_store


def main(config_file: str, threads: int, calls: int, go: str) -> None:
    die_with_parent(os.getppid())
    config = config_room.load(Path(config_file), {})
    client = client_for_store(config, "demo", connect(config.redis.url, timeout=5.0), timeout=110)
    results: list[str] = []

    def work() -> None:
        for _ in range(calls):
            try:
                results.append(client.products.get(1).name)
            except ApiError as error:
                results.append(f"error: {error}")

    callers = [threading.Thread(target=work) for _ in range(threads)]
    Path(f"{go}.ready.{threading.get_native_id()}").touch()
    while not Path(go).exists():
        time.sleep(0.002)
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    errors = [one for one in results if one.startswith("error")]
    print(json.dumps({"ok": len(results) - len(errors), "errors": errors[:3]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
