"""`python -m workers`: validates the plugins, then starts and supervises the worker processes and a housekeeper."""

from __future__ import annotations

import argparse
import sys

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from receiver.process_files import hold
from receiver.start_checks import prepare_data_dir
from workers.plugins.validation_process import ValidatedPlugins, validate_plugins
from workers.processes import begin_start, reap_orphans_if_first
from workers.runtime.config_reload import ConfigReload
from workers.runtime.server_outage import wait_for_server
from workers.runtime.supervisor import Supervisor, worker_programs

STOP_SECONDS = 5.0
"""Seconds after the drain time in which a process must end."""

log = logs.get("supervisor")


class WorkerSupervisor:
    """The worker processes, as many as the config says, and a housekeeper. On HUP it reads the config again."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._redis_in_use = config.redis
        self._supervisor = Supervisor(report=log.warning, stop_seconds=config.workers.drain + STOP_SECONDS)
        self._supervisor.on_hup(ConfigReload(self._supervisor.selector, config.path, self._adopt).begin)

    def run(self) -> None:
        for program in worker_programs(self._config):
            self._supervisor.start(program)
        self._supervisor.run()
        self._supervisor.stop_children()

    def _adopt(self, config: Config, _: ValidatedPlugins) -> None:
        if config.redis != self._redis_in_use:
            log.warning("[redis] has changed; restart `storehooks worker` to use it")
        self._supervisor.stop_seconds = config.workers.drain + STOP_SECONDS
        self._supervisor.change(worker_programs(self._config), worker_programs(config))
        self._config = config
        log.info("supervisor reloaded", processes=config.workers.processes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers", description="The worker processes and a housekeeper.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    arguments = parser.parse_args()
    begin_start()
    reap_orphans_if_first()
    logs.setup("supervisor")
    try:
        config = load_from_environment(arguments.config)
        prepare_data_dir(config.data_dir, set_by=config.data_dir_set_by)
        validate_plugins(config)
        wait_for_server(config.redis, log)
    except StorehooksError as error:
        print(f"storehooks worker: {error}", file=sys.stderr)
        return 2
    supervisor = WorkerSupervisor(config)
    hold(config.data_dir, "worker")  # from here on HUP is handled
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
