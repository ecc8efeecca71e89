"""The web server's settings, and `python -m receiver.server.web`, the process `web`.

The master process holds the config. On HUP it reads the config again: new worker processes get a valid one; an invalid
one is refused with a line in the log, and the old one stays in use. So is one with which a start would be refused.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from receiver import logs
from receiver.app import create_app
from receiver.config import Config, load_from_environment
from receiver.config.reloading import adopt
from receiver.contract.errors import ServerUnreachable, StorehooksError
from receiver.delivery.drain import sign_off
from receiver.delivery.pipeline import DeliveryPipeline, start_pipeline
from receiver.inbox import connect_to
from receiver.inbox.redis.connecting import check
from receiver.process.earlier_data import require_no_earlier_data
from receiver.process.process_files import hold
from receiver.process.service_manager import ServiceManager
from receiver.process.standard_streams import open_closed_streams
from receiver.process.start_checks import prepare_data_dir, require_free_port, require_new_address
from receiver.server.loop_worker import ENDING, LoopWorker
from receiver.spool import EVENTS_FORMAT, REFUSED_FILE, REFUSED_FORMAT, check_format, events_files

PR_SET_PDEATHSIG = 1
DESCRIPTORS = 8192
"""What a process asks for. Many systems allow 1,024 unless it does, and up to 1,000 are for connections."""
SOCKETS_GIVEN = "[receiver] bind has changed; the service manager has opened the sockets, and decides where web listens"
TEMPORARY = ("/dev/shm", "/tmp")  # noqa: S108  gunicorn creates an unnamed file there


class Master(Arbiter):
    """gunicorn's master process. It ends workers that hang, so while its loop runs the service is alive."""

    def spawn_worker(self) -> int:
        """A signal that comes before the worker handles it waits, or it would go on until it is killed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            return int(super().spawn_worker())
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def start(self) -> None:
        super().start()
        self.app.manager.ready()

    def reload(self) -> None:
        """Replace the workers, unless the config is refused: who waits for their end must not take it for adopted."""
        self.app.manager.reloading()
        if self.app.adopt_config():
            super().reload()
        self.app.manager.ready()

    def murder_workers(self) -> None:
        super().murder_workers()
        self.app.manager.alive()

    def stop(self, graceful: bool = True) -> None:
        self.app.manager.stopping()
        super().stop(graceful)


class WebServer(BaseApplication):
    """gunicorn, set up from our config instead of its command line."""

    pipeline: DeliveryPipeline

    def __init__(self, config: Config, explicit: str | None, manager: ServiceManager) -> None:
        self.config, self.manager = config, manager
        self._explicit = explicit
        self._sockets_given = bool(os.environ.get("LISTEN_FDS"))
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn at start, and at each HUP whose config is valid."""
        assert self.cfg is not None
        for name, value in settings(self.config).items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in each worker process; its worker class reads `pipeline` afterwards."""
        self.pipeline = start_pipeline(self.config)
        return create_app(self.pipeline, max_body=self.config.receiver.max_body)

    def run(self) -> None:
        Master(self).run()

    def adopt_config(self) -> bool:
        """Read the config again; False if it is refused, and the old one stays in use."""
        try:
            config, left = adopt(self.config, load_from_environment(self._explicit))
            if left:
                logs.get("receiver").warning("[redis] has changed; restart `storehooks web` to use it", keys=left)
            if self._sockets_given and config.receiver.bind != self.config.receiver.bind:
                logs.get("receiver").warning(SOCKETS_GIVEN, bind=config.receiver.bind)
                bind = {"bind": self.config.receiver.bind}
                config = config.model_copy(update={"receiver": config.receiver.model_copy(update=bind)})
            check_change(self.config, config)
        except StorehooksError as error:
            logs.get("receiver").error("config refused, the old one stays", why=error.logged)
            return False
        if gone := sorted(self.config.stores.keys() - config.stores.keys()):
            logs.get("receiver").warning("stores are gone after a reload", stores=gone)
        self.config = config
        return True


def settings(config: Config) -> dict[str, Any]:
    return {
        "bind": [config.receiver.bind],
        "workers": config.receiver.processes,
        "worker_class": LoopWorker,
        "worker_tmp_dir": heartbeat_folder(config),
        "graceful_timeout": 8,
        "control_socket_disable": True,  # gunicorn opens one in the home directory by default
        "logger_class": QuietLogger,
        "proc_name": "storehooks web",
        "when_ready": lambda server: begin_master(config, server),
        "on_reload": lambda server: announce(config, server),  # bind may have changed
        "on_exit": lambda _server: sign_off(config),  # the workers have ended
        "post_fork": lambda _server, _worker: begin_worker(config),
    }


def heartbeat_folder(config: Config) -> str:
    """Where gunicorn has unnamed files for the signs of life of its workers: in memory, so that none waits for a disk;
    else where files can be written."""
    return next((path for path in TEMPORARY if os.access(path, os.W_OK)), str(config.data_dir))


class QuietLogger(Logger):
    """Sends gunicorn's messages through our formatter. No access log, because paths are the sender's text."""

    def setup(self, cfg: Any) -> None:  # noqa: ARG002  gunicorn's signature
        self.error_log.propagate = True
        self.error_log.handlers = []
        self.error_log.setLevel("INFO")
        self.access_log.disabled = True


def announce(config: Config, server: Any) -> None:
    """Log the address that the server listens on, and write it where `doctor` finds it.

    It may differ from the config that others read: platforms and Procfile runners set PORT for this process alone.
    """
    addresses = [str(one).removeprefix("http://") for one in server.LISTENERS]
    place = config.place("receiver", "bind")
    for address in addresses:
        set_by = "its default" if place is None else str(place)
        logs.get("receiver").info("web listens", address=address, set_by=set_by)
    hold(config.data_dir, "web", address=next(iter(addresses), ""))


def begin_master(config: Config, server: Any) -> None:
    """A HUP that has waited since the start is handled from now on."""
    announce(config, server)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def begin_worker(config: Config) -> None:
    """First in each worker process. If the master is killed, its workers must not go on serving an old config."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # only the master reloads
    hold(config.data_dir, "web-worker")


def check_change(old: Config, new: Config) -> None:
    """Raise for a config that a reload cannot use. What has not changed is not checked again."""
    require_new_address(new.receiver.bind, old=old.receiver.bind, key="[receiver] bind")
    if new.receiver.spool != old.receiver.spool:
        check_redis(new)


def check_redis(config: Config) -> None:
    """Raise for a Redis server that is too old or wrongly configured, or unreachable while the spool is off."""
    client = connect_to(config.redis, timeout=config.redis.timeout)
    try:
        check(client, ack=config.redis.ack)
    except ServerUnreachable as error:
        if config.receiver.spool == "off":
            raise
        logs.get("receiver").warning("starting without Redis; deliveries go to the spool", why=str(error))
    finally:
        client.close()


def allow_more_descriptors() -> None:
    """Raise the soft limit of open files, within the hard one, for this process and the workers that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> int:
    open_closed_streams()
    parser = argparse.ArgumentParser(prog="python -m receiver.server.web", description="The public web process.")
    parser.add_argument("--config", help="the TOML file; else $STOREHOOKS_CONFIG or ./config.toml")
    explicit = parser.parse_args().config
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # until gunicorn handles it
    logs.setup("web")
    allow_more_descriptors()
    os.umask(0o077)  # what it stores is for no other user
    manager = ServiceManager(os.environ)
    try:
        config = load_from_environment(explicit)
        require_no_earlier_data(config)
        prepare_data_dir(config.data_dir, set_by=config.data_dir_set_by)
        require_free_port(config.receiver.bind, key="[receiver] bind")
        check_format(config.data_dir / REFUSED_FILE, REFUSED_FORMAT)
        for file in events_files(config.data_dir):
            check_format(file, EVENTS_FORMAT)
        check_redis(config)
    except StorehooksError as error:
        print(f"storehooks web: {error}", file=sys.stderr)
        return 2
    WebServer(config, explicit, manager).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
