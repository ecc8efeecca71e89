"""What a test asks of a running sandbox store, over its control endpoints."""

from __future__ import annotations

from typing import Any

import httpx2


class SandboxControls:
    """The controls of the sandbox that `http` calls."""

    http: httpx2.Client

    def answers(self) -> bool:
        try:
            return self.http.get("/sandbox").status_code == 200
        except httpx2.HTTPError:
            return False

    def status(self) -> dict[str, Any]:
        return dict(self.http.get("/sandbox").raise_for_status().json())

    def log(self) -> list[Any]:
        """[time, method, path, status] of every request to the API."""
        return list(self.http.get("/sandbox/log").raise_for_status().json())

    def misbehave(self, **values: float | str) -> None:
        self.http.put("/sandbox/misbehave", json=values).raise_for_status()

    def do(self, action: str, **query: int) -> None:
        self.http.post(f"/sandbox/do/{action}", params=query, timeout=60).raise_for_status()
