"""`python -m workers`: validates the plugins, then starts and supervises the worker processes and a housekeeper."""

from __future__ import annotations

import argparse
import os
import sys

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.config.reloading import adopt
from receiver.contract.errors import StorehooksError
from receiver.process.earlier_data import require_no_earlier_data
from receiver.process.process_files import hold, show_life
from receiver.process.service_manager import ServiceManager
from receiver.process.start_checks import prepare_data_dir
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess
from workers.processes import Schedule, begin_start, reap_orphans_if_first
from workers.runtime.config_reload import ConfigReload
from workers.runtime.server_outage import wait_for_server
from workers.runtime.supervisor import Supervisor, worker_programs

SHOW_LIFE_EVERY = 1.0
SILENT_SECONDS = 15.0
"""A process of ours that does not respond for this long is hung. One that waits for Redis responds."""
STOP_SECONDS = 5.0
"""Seconds after the drain time in which a process must end."""

ROLE = "worker"

log = logs.get("supervisor")


class Life:
    """Shows the service manager and `storehooks worker --check` that the workers respond."""

    def __init__(self, config: Config, manager: ServiceManager) -> None:
        self.manager = manager
        self._data_dir, self._schedule = config.data_dir, Schedule()

    def show(self) -> None:
        if self._schedule.due("show", SHOW_LIFE_EVERY):
            show_life(self._data_dir, ROLE)
            self.manager.alive()


class WorkerSupervisor:
    """The worker processes, as many as the config says, and a housekeeper. On HUP it reads the config again."""

    def __init__(self, config: Config, plugins: ValidatedPlugins, life: Life) -> None:
        self._config, self._life = config, life
        self._programs = worker_programs(config, plugins)
        self._supervisor = Supervisor(report=log.warning, stop_seconds=config.workers.drain + STOP_SECONDS)
        self._reload = ConfigReload(self._supervisor.selector, config.path, self._adopt)
        self._supervisor.on_hup(self._begin_reload)
        self._reloads = False
        self._silence = logs.OutageLog(
            log, begins="a process does not respond", ends="all processes respond again", level="error"
        )

    def run(self) -> None:
        for program in self._programs:
            self._supervisor.start(program)
        self._supervisor.run(every=self._watch)
        self._life.manager.stopping()
        self._supervisor.stop_children()

    def _begin_reload(self) -> None:
        self._life.manager.reloading()
        self._reloads = True
        self._reload.begin()

    def _watch(self) -> None:
        """Show life as long as every process does."""
        if self._reloads and not self._reload.is_under_way:
            self._reloads = False
            self._life.manager.ready()
        if silent := self._supervisor.silent(SILENT_SECONDS):
            self._silence.failed(processes=silent)
        else:
            self._silence.worked()
            self._life.show()

    def _adopt(self, config: Config, plugins: ValidatedPlugins) -> None:
        config, left = adopt(self._config, config)
        if left:
            log.warning("[redis] has changed; restart `storehooks worker` to use it", keys=left)
        self._supervisor.stop_seconds = config.workers.drain + STOP_SECONDS
        programs = worker_programs(config, plugins)
        self._supervisor.change(self._programs, programs)
        self._config, self._programs = config, programs
        log.info("supervisor reloaded", processes=config.workers.processes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers", description="The worker processes and a housekeeper.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    arguments = parser.parse_args()
    begin_start()
    reap_orphans_if_first()
    logs.setup("supervisor")
    manager = ServiceManager(os.environ)
    try:
        config = load_from_environment(arguments.config)
        require_no_earlier_data(config)
        prepare_data_dir(config.data_dir, set_by=config.data_dir_set_by)
        plugins = ValidationProcess(config).result()
        hold(config.data_dir, ROLE)  # a HUP from here on waits until it is handled
        life = Life(config, manager)
        manager.ready()  # also while it waits for Redis: else the service manager would end it
        wait_for_server(config.redis, log, show_life=life.show)
    except StorehooksError as error:
        print(f"storehooks worker: {error}", file=sys.stderr)
        return 2
    WorkerSupervisor(config, plugins, life).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
