"""Server faults: why the Redis server cannot be used, and how to correct it.

A fault that ends without a change of our config is temporary: the receiver starts all the same, and uses the spool.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

from receiver.contract.errors import ServerUnreachable, ServerUnusable
from receiver.inbox import keys

URL = "[redis] url (or REDIS_URL)"
ATTEMPTS = 6
_A_KEY_OF = {"sh:": keys.FORMAT, "rq:": keys.RQ_QUEUES}
MAX_SAID = 200


@dataclass(frozen=True)
class ServerFault:
    text: str
    fix: str
    temporary: bool = False
    only_workers: str = ""
    """What workers do without the missing right, if only they need it. Deliveries are still stored."""
    running: str = ""
    """What processes that run already do, if that is more than that web stores no delivery in Redis."""

    @property
    def error(self) -> ServerUnusable:
        return (ServerUnreachable if self.temporary else ServerUnusable)(f"{self.text}; {self.fix}")


def describe(client: Redis) -> str:
    """The address of a client's server, without its password."""
    pool = client.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return f"{pool.service_name} (by its sentinels)"
    given = pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def user_of(client: Redis) -> str:
    """The name of a client's user at its server."""
    return client.connection_pool.connection_kwargs.get("username") or "default"


def reason_of(error: Exception) -> str:
    """An error for a log line: what the server said if it answered with one, without the arguments that it repeats for
    an unknown command. The text of any other error may contain parts of a payload."""
    if isinstance(error, ResponseError):
        return str(error).partition(", with args")[0][:MAX_SAID]
    return type(error).__name__


def fault_of_error(error: RedisError, client: Redis) -> ServerFault:
    """The fault behind an error of the first command on a connection. May ask the sentinels."""
    server, given = f"the Redis server at {describe(client)}", client.connection_pool.connection_kwargs
    if isinstance(error, AuthenticationError):
        return _wrong_password(str(error), server, user_of(client))
    if isinstance(error, BusyLoadingError):
        return ServerFault(f"{server} is still loading its data", "wait until it is ready", temporary=True)
    error = _clearer(error, client)
    known = _sentinel_fault(error, server, client) or _refused_command(error, server, client)
    said = (str(error) or type(error).__name__).rstrip(".")
    return (
        known
        or _tls_fault(error, server, given)
        or ServerFault(
            f"{server} does not answer: {said}",
            f"start it, or set {URL} or sentinels; `storehooks dev` starts an embedded one",
            temporary=True,
        )
    )


def _clearer(error: RedisError, client: Redis) -> RedisError:
    """A server that refuses our certificate says why, and closes. The reason is often lost, so it is asked again."""
    for _ in range(ATTEMPTS):
        cause = error.__cause__ or error.__context__
        if not isinstance(cause, ssl.SSLEOFError):
            break
        try:
            client.ping()
            break
        except RedisError as again:
            error = again
    return error


def fault_of_mode(info: Mapping[str, Any], client: Redis) -> ServerFault | None:
    """The fault of a server that answers and cannot be used in its present role. `info` is its INFO."""
    server = f"the Redis server at {describe(client)}"
    if "cluster" in (info.get("redis_mode"), info.get("server_mode")):
        return ServerFault(
            f"{server} is a Redis Cluster, where our scripts cannot run: their keys are in several slots",
            "use one server, or a primary with replicas and sentinels",
        )
    if info.get("role") == "slave":
        return ServerFault(
            f"{server} is a replica of {info.get('master_host')}:{info.get('master_port')}, "
            "and a replica refuses writes",
            f"set {URL} to its primary, or set [redis] sentinels",
            temporary=True,  # it may become the primary at any moment
        )
    return None


def fault_of_unknown(commands: Sequence[str], client: Redis) -> ServerFault:
    """The fault of a server that does not know some commands of ours."""
    one = len(commands) == 1
    running = f"processes that run already fail where they use {'it' if one else 'them'}"
    return _unknown(f"{'command' if one else 'commands'} {', '.join(commands)}", client, running)


def _unknown(commands: str, client: Redis, running: str = "") -> ServerFault:
    return ServerFault(
        f"the Redis server at {describe(client)} does not know the {commands}",
        "remove rename-command from the server's config, or use Redis 7.0, Valkey 7.2, or later",
        running=running,
    )


def _sentinel_fault(error: RedisError, server: str, client: Redis) -> ServerFault | None:
    """The fault if no sentinel can be asked, or none knows the name. A primary that they know is only down."""
    pool = client.connection_pool
    if not (isinstance(error, MasterNotFoundError) and isinstance(pool, SentinelConnectionPool)):
        return None
    answers, fault = [], None
    for sentinel in pool.sentinel_manager.sentinels:
        try:
            answers.append(sentinel.sentinel_masters())
        except RedisError as refused:
            fault = _unusable_sentinel(refused, server, sentinel)
    if not answers:
        return fault
    known = sorted({name for answer in answers for name in answer})
    if pool.service_name in known:
        return None
    return ServerFault(
        f"the sentinels know no primary of the name {pool.service_name}; they know: {', '.join(known) or 'none'}",
        "correct [redis] sentinel_name",
    )


def _unusable_sentinel(error: RedisError, server: str, sentinel: Redis) -> ServerFault:
    if isinstance(error, AuthenticationError):
        return ServerFault(f"{server}: its sentinels refuse the password", "correct [redis] sentinel_password")
    given = sentinel.connection_pool.connection_kwargs
    return _tls_fault(error, f"the sentinel at {describe(sentinel)}", given) or ServerFault(
        f"{server} does not answer, nor does a sentinel: {str(error).rstrip('.')}",
        "start them, or correct [redis] sentinels",
        temporary=True,
    )


def _refused_command(error: RedisError, server: str, client: Redis) -> ServerFault | None:
    """The fault if the server answers the first command with an error."""
    said = str(error)
    if isinstance(error, NoPermissionError) or "ACL failure in script" in said:
        return _missing_right(said, f"{server}: the user {user_of(client)} may not", client)
    if isinstance(error, ResponseError) and "DB index" in said:
        database = client.connection_pool.connection_kwargs.get("db")
        return ServerFault(f"{server} has no database {database}", f"correct the number at the end of {URL}")
    if isinstance(error, ResponseError) and "unknown command" in said.lower():
        return _unknown(f"command {_command_in(said)}", client)
    if isinstance(error, ResponseError):
        fix = "see the server's log; `storehooks doctor` names damaged keys (WRONGTYPE)"
        return ServerFault(f"{server} answers with an error: {said.rstrip('.')}", fix, temporary=True)
    return None


def _missing_right(said: str, user_may_not: str, client: Redis) -> ServerFault:
    """The server names a command that the user may not run. Of a key it says only that it is one."""
    if command := _command_in(said):
        return ServerFault(f"{user_may_not} run {command}", "give it the rights that docs/operating/redis.md lists")
    pipeline = client.pipeline(transaction=False)
    for name in _A_KEY_OF.values():
        pipeline.exists(name)
    with suppress(RedisError):
        answers = zip(_A_KEY_OF, pipeline.execute(raise_on_error=False), strict=True)
        if refused := [prefix for prefix, answer in answers if isinstance(answer, NoPermissionError)]:
            patterns = " ".join(f"~{prefix}*" for prefix in refused)
            use = f"use keys that begin with {' or '.join(refused)}"
            return ServerFault(f"{user_may_not} {use}", f"give it {patterns}, as docs/operating/redis.md says")
    fix = "give it the rights that docs/operating/redis.md lists"
    return ServerFault(f"{user_may_not} use all that is needed: {said.rstrip('.')}", fix)


def _wrong_password(said: str, server: str, user: str) -> ServerFault:
    if "without any password configured" in said:
        return ServerFault(f"{server} has no password, and {URL} has one", "remove it there, or set it at the server")
    if "Authentication required" in said:
        return ServerFault(f"{server} requires a password", f"put it into {URL}: redis://USER:PASSWORD@HOST:PORT")
    return ServerFault(
        f"{server} refuses the password of the user {user}, or has no such user",
        f"correct them in {URL}, with special characters percent-encoded",
    )


def _command_in(said: str) -> str:
    """The command in "User me has no permissions to run the 'info' command"; empty if there is none."""
    _, _, rest = said.partition("'")
    return rest.partition("'")[0].upper()


def _tls_fault(error: RedisError, server: str, given: Mapping[str, Any]) -> ServerFault | None:
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate_fault(cause, server)
    if isinstance(cause, OSError) and (fault := _client_certificate_fault(cause, server) or _file_fault(given)):
        return fault
    if isinstance(cause, ssl.SSLError) or "handshake" in str(cause):
        return ServerFault(
            f"{server} does not complete the TLS handshake: {cause}",
            f"if it has no TLS, write redis:// instead of rediss:// in {URL}; if it requires a client certificate, add "
            "?ssl_certfile=PATH&ssl_keyfile=PATH there",
            temporary=True,
        )
    closed = isinstance(cause, ConnectionResetError) or "closed by server" in str(error)
    if closed and "path" not in given:
        return ServerFault(
            f"{server} closes the connection: {str(error).rstrip('.')}",
            f"if a proxy is in front of it, check that the server behind it is up; "
            f"if the server expects TLS, use rediss:// in {URL}",
            temporary=True,
        )
    return None


def _client_certificate_fault(cause: OSError, server: str) -> ServerFault | None:
    """The fault if the server says in an alert that our certificate is missing or not trusted."""
    if "CERTIFICATE_REQUIRED" in str(cause):
        return ServerFault(
            f"{server} requires a client certificate",
            f"add ?ssl_certfile=PATH&ssl_keyfile=PATH to {URL}, or set tls-auth-clients no at the server",
        )
    if "UNKNOWN_CA" in str(cause):
        return ServerFault(
            f"{server} does not trust the client certificate of ssl_certfile in {URL}",
            "use one of an authority that the server knows, or add its authority to tls-ca-cert-file of the server",
        )
    return None


def _file_fault(given: Mapping[str, Any]) -> ServerFault | None:
    """The fault of a file with certificates or a key: it cannot be read, or does not contain what it should."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca_file, certificate, key = (given.get(f"ssl_{name}") for name in ("ca_certs", "certfile", "keyfile"))
    options = {"[redis] ca_file": ca_file, "[redis] url: ssl_certfile": certificate, "[redis] url: ssl_keyfile": key}
    for option, path in options.items():
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            return ServerFault(f"{option} {path} cannot be read: {error.strerror}", "correct its path or mode")
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
    except ssl.SSLError:
        return ServerFault(f"[redis] ca_file {ca_file} contains no certificate", "set it to a PEM file with one")
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        return ServerFault(
            f"ssl_certfile and ssl_keyfile in {URL} are no certificate with its key: {error}",
            "set them to PEM files that belong together, with a key that has no password",
        )
    return None


def _certificate_fault(cause: ssl.SSLCertVerificationError, server: str) -> ServerFault:
    why = cause.verify_message.rstrip(".")
    if "expired" in why or "not yet valid" in why:
        return ServerFault(
            f"the certificate of {server} has expired" if "expired" in why else f"the certificate of {server} is {why}",
            "renew it at the server, or correct the clock of this host",
            temporary=True,
        )
    if "mismatch" in why:
        return ServerFault(
            f"the certificate of {server} is for another host: {why}", f"use the host name of the certificate in {URL}"
        )
    return ServerFault(
        f"the certificate of {server} is not trusted: {why}", "set [redis] ca_file to the certificate of its authority"
    )
