"""What an agent serves: `/metrics`, and the page and data of its run."""

from __future__ import annotations

from urllib.parse import quote

from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from sentinel.metrics.encoder import MetricsEncoder
from sentinel.web.run_routes import RunRoutes, RunView
from sentinel.web.static_files import StaticFiles


class AgentSite:
    """The page of one run at `/runs/<run>/`, and its data there and at `/`, with its metrics."""

    def __init__(self, registry: CollectorRegistry, view: RunView) -> None:
        self._registry, self._view = registry, view
        self._metrics_encoder = MetricsEncoder()
        self._run_routes: RunRoutes | None = None

    def routes(self, write_token: str) -> list[BaseRoute]:
        """All routes of the agent but those of every server."""
        static = StaticFiles()
        self._run_routes = RunRoutes(self._find_view, write_token, static)
        return [
            Route("/metrics", self._answer_metrics),
            Route("/", self._redirect_to_run),
            Route("/static/{path:path}", static.serve),
            *self._run_routes.routes(),
            *self._run_routes.page_routes(),
        ]

    def check(self) -> None:
        """Raise what prevents reading the state of the run."""
        self._view.state()

    def close(self) -> None:
        """End the streams of events."""
        if self._run_routes is not None:
            self._run_routes.streams.close()

    async def _find_view(self, request: Request) -> RunView:
        run = request.path_params.get("run", self._view.run)
        if run != self._view.run:
            raise HTTPException(404, f"This agent serves run {self._view.run} only.")
        return self._view

    async def _redirect_to_run(self, _: Request) -> Response:
        return RedirectResponse(f"runs/{quote(self._view.run, safe='')}/", 307)

    def _answer_metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = self._metrics_encoder.encode(accept, self._registry)
        return Response(body, headers={"content-type": content_type})
