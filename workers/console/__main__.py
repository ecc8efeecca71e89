"""`python -m workers.console`: the web process and the findings process, supervised."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress

from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.config.reloading import redis_variables
from receiver.contract.errors import ConfigError, StorehooksError
from receiver.inbox import connect_to
from receiver.process.earlier_data import require_no_earlier_data
from receiver.process.process_files import hold
from receiver.process.service_manager import ServiceManager
from receiver.process.start_checks import prepare_data_dir, require_free_port
from workers.console import findings_process
from workers.console.access import has_password, new_link, require_safe
from workers.console.web_process import ConsoleServer, read_again
from workers.processes import begin_start, reap_orphans_if_first
from workers.runtime.supervisor import Program, Supervisor

STOP_SECONDS = 6.0
"""For its processes. `storehooks dev` kills the console after 8 s, which would leave its old findings."""
WEB = "console web"

log = logs.get("console")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.console", description="The operator's web app.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    parser.add_argument("--no-link", action="store_true", help="print no link")
    arguments = parser.parse_args()
    begin_start()
    reap_orphans_if_first()
    logs.setup("console")
    manager = ServiceManager(os.environ)
    try:
        config = load_from_environment(arguments.config)
        require_safe(config.console)
        require_free_port(config.console.bind, key="[console] bind")
        require_no_earlier_data(config)
        prepare_data_dir(config.data_dir, set_by=config.data_dir_set_by)
    except StorehooksError as error:
        print(f"storehooks console: {error}", file=sys.stderr)
        return 2
    if not arguments.no_link:
        print(f"console  {_address(config)}", flush=True)
    run(config, manager)
    return 0


def run(config: Config, manager: ServiceManager) -> None:
    findings_process.remove_findings(config.data_dir)
    supervisor = Supervisor(report=log.warning, stop_seconds=STOP_SECONDS)
    service = ConsoleService(config, supervisor, manager)
    hold(config.data_dir, "console")  # from here on HUP is handled
    supervisor.start(Program(WEB, call=lambda: ConsoleServer(service.config).serve()))
    supervisor.start(
        Program(
            "findings", call=lambda: findings_process.run(config.data_dir, config.path), environ=redis_variables(config)
        )
    )
    supervisor.run(every=service.watch)
    manager.stopping()
    supervisor.stop_children()
    findings_process.remove_findings(config.data_dir)


class ConsoleService:
    """The messages to the service manager: ready once the web process listens, and again after a reload. And the
    config in use, for a web process that is started later."""

    def __init__(self, config: Config, supervisor: Supervisor, manager: ServiceManager) -> None:
        self.config = config
        self._supervisor, self._manager = supervisor, manager
        self._is_ready = False
        supervisor.on_hup(self._reload)

    def _reload(self) -> None:
        """The web process answers all the time: it is done as soon as it is asked."""
        self._manager.reloading()
        self._is_ready = False
        with suppress(StorehooksError):  # the web process refuses it, too, and logs why
            self.config, _ = read_again(self.config)

    def watch(self) -> None:
        if not self._is_ready and self._supervisor.has_shown_life(WEB):
            self._is_ready = True
            self._manager.ready()
        self._manager.alive()


def _address(config: Config) -> str:
    """Where to open it: with a password its URL, else a link that works once."""
    if has_password(config.console):
        return config.console.address
    try:
        return new_link(config.console, connect_to(config.redis, timeout=2.0))
    except (RedisError, ConfigError):
        return f"{config.console.address}   Redis does not answer; then `storehooks console --link` prints a link"


if __name__ == "__main__":
    sys.exit(main())
