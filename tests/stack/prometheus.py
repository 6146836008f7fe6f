"""A Prometheus that was started for a test, asked over its own API."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import requests


@dataclass(frozen=True)
class Prometheus:
    url: str

    @property
    def ready(self) -> bool:
        with suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.url}/-/ready", timeout=60).ok
        return False

    def now(self, query: str, time: float | None = None) -> list[dict]:
        """Series of an instant query."""
        return self._ask("query", query=query, **({} if time is None else {"time": time}))["result"]

    def over(self, query: str, start: float, end: float, step: float) -> list[dict]:
        """Series of a range query."""
        return self._ask("query_range", query=query, start=start, end=end, step=step)["result"]

    def label_values(self, metric: str, label: str, start: float, end: float) -> list[str]:
        matching = {"match[]": metric, "start": start, "end": end}
        return self._ask(f"label/{label}/values", **matching)

    def reload(self) -> None:
        requests.post(f"{self.url}/-/reload", timeout=60).raise_for_status()

    def _ask(self, what: str, **parameters):
        answer = requests.get(f"{self.url}/api/v1/{what}", params=parameters, timeout=60)
        told = answer.json()
        assert told["status"] == "success", f"{parameters}: {told}"
        return told["data"]
