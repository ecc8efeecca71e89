"""`python -m workers`: validates the plugins, then starts and supervises the worker processes and a housekeeper."""

from __future__ import annotations

import argparse
import sys

from receiver import logs
from receiver.config import load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.inbox import connect_to
from receiver.inbox.redis.connecting import check
from receiver.process_files import hold
from receiver.start_checks import prepare_data_dir
from workers.plugins.validation_process import validate_plugins
from workers.runtime.supervisor import Supervisor, worker_programs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers", description="The worker processes and a housekeeper.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    explicit = parser.parse_args().config
    logs.setup("supervisor")
    try:
        config = load_from_environment(explicit)
        prepare_data_dir(config.data_dir)
        client = connect_to(config.redis, timeout=2.0)
        check(client, ack=config.redis.ack)
        client.close()
        validate_plugins(config)
    except StorehooksError as error:
        print(f"storehooks worker: {error}", file=sys.stderr)
        return 2
    log = logs.get("supervisor")
    supervisor = Supervisor(report=log.warning, stop_seconds=config.workers.drain + 5)
    hold(config.data_dir, "worker")  # from here on HUP is handled
    for program in worker_programs(config):
        supervisor.start(program)
    supervisor.run()
    supervisor.stop_children()
    return 0


if __name__ == "__main__":
    sys.exit(main())
