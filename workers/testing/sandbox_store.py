"""A sandbox store over HTTP: its API client, its records and its faults, as a test needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.storeapi import Client
    from workers.testing.local_system import LocalSystem


class SandboxStore:
    """A running sandbox store. Each test starts with its initial records: 40 products, 20 customers."""

    def __init__(self, local_system: LocalSystem) -> None:
        self._local_system = local_system
        self.url = local_system.sandbox_url

    @property
    def client(self) -> Client:
        """The same client as `ctx.api`: `make_context(api=store.client)`."""
        from workers.storeapi import client_for_store
        from workers.testing.local_system import STORE

        return client_for_store(self._local_system.config, STORE)

    def misbehave(self, **chances: float | str) -> None:
        """Inject faults, such as `too_many=0.3, drop=0.1`; see docs/sandbox.md."""
        self._request("PUT", "/misbehave", chances)

    def reset(self) -> None:
        """Restore the initial records and remove all faults."""
        self._request("POST", "/do/reset")

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The store's records of one kind: "product", "order", "customer", "comment", "address", ..."""
        return self.records_by_kind().get(kind, [])

    def records_by_kind(self) -> dict[str, list[dict[str, Any]]]:
        """All records of the store."""
        return dict(self._request("GET", "/records"))

    def place(self, kind: str, *records: Mapping[str, Any]) -> None:
        """Add records, each under its own id. Existing records with these ids are replaced."""
        self._request("PUT", "/records", {kind: list(records)})

    def writes(self) -> list[str]:
        """Each request that changed something: "POST /api/v3/app/orders"."""
        log = self._request("GET", "/log")
        return [f"{method} {path}" for _, method, path, status in log if method != "GET" and status < 300]

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        import httpx2

        answer = httpx2.request(method, f"{self.url}/sandbox{path}", json=body, timeout=30, trust_env=False)
        return answer.raise_for_status().json()
