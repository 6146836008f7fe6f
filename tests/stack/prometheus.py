"""Client of the HTTP API of a Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field

import requests
from programs import is_ready


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus at `url`."""

    url: str
    session: requests.Session = field(default_factory=requests.Session)

    @property
    def ready(self) -> bool:
        return is_ready(self.url)

    def instant_query(self, query: str, time: float | None = None) -> list[dict]:
        """Series of an instant query."""
        return self._get("query", query=query, **({} if time is None else {"time": time}))["result"]

    def range_query(self, query: str, start: float, end: float, step: float) -> list[dict]:
        """Series of a range query."""
        return self._get("query_range", query=query, start=start, end=end, step=step)["result"]

    def label_values(self, metric: str, label: str, start: float, end: float) -> list[str]:
        matching = {"match[]": metric, "start": start, "end": end}
        return self._get(f"label/{label}/values", **matching)

    def reload(self) -> None:
        requests.post(f"{self.url}/-/reload", timeout=240).raise_for_status()

    def _get(self, endpoint: str, **parameters):
        response = self.session.get(f"{self.url}/api/v1/{endpoint}", params=parameters, timeout=240)
        body = response.json()
        assert body["status"] == "success", f"{parameters}: {body}"
        return body["data"]
