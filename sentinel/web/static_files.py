"""The files of the web page, and plotly.js from the installed package `plotly`.

Pages refer to a file as `static/<file>`, which is served as `static/<version>/<file>`: the version
changes with any of the files, so that browsers may store them for good. ES modules import each
other by relative paths, which stay in the version.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sentinel.web.responses import IMMUTABLE, REVALIDATED, accepts_gzip, body_response, is_unchanged

STATIC_DIRECTORY = Path(__file__).parent / "static"
PLOTLY_NAME = "plotly.min.js"

_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MIN_COMPRESSED_BYTES = 1024
"""Smaller files are sent as they are; browsers load each only once."""
_STATIC_REFERENCE = re.compile(rb'(?<=["/])static/(?=[\w./-]+")')


class StaticFiles:
    """Serves the files below `directory`; any other path is 404.

    A changed file is read again, so that no restart is needed while it is edited.
    """

    def __init__(self, directory: Path = STATIC_DIRECTORY) -> None:
        self._directory = directory
        self._bodies: dict[Path, tuple[int, bytes]] = {}
        self._version: tuple[tuple[tuple[Path, int], ...], str] = ((), "")
        self._compressed_plotly: bytes | None = None

    def serve(self, request: Request) -> Response:
        """The file of the path parameter `path`, with or without a version."""
        version, _, name = str(request.path_params["path"]).rpartition("@/")
        path = self._find(name)
        if path is None:
            raise HTTPException(404)
        is_current = version == self.version()
        cache = IMMUTABLE if is_current else REVALIDATED
        etag = f'"{self.version()}"'
        headers = {"cache-control": cache, "etag": etag}
        if is_unchanged(request, etag):
            return Response(None, 304, headers)
        if name == PLOTLY_NAME:
            return self._plotly_response(request, path, headers)
        return body_response(
            request,
            self._read(path),
            _CONTENT_TYPES[path.suffix],
            headers=headers,
            compressed_from=_MIN_COMPRESSED_BYTES,
        )

    def page(self, name: str) -> Callable[[Request], Response]:
        """The endpoint of a page, whose references to static files get their version."""

        def answer(request: Request) -> Response:
            version = self.version()
            etag = f'"{version}"'
            headers = {"cache-control": REVALIDATED, "etag": etag}
            if is_unchanged(request, etag):
                return Response(None, 304, headers)
            path = self._find(name)
            if path is None:
                raise HTTPException(404)
            body = _STATIC_REFERENCE.sub(f"static/{version}@/".encode(), self._read(path))
            return body_response(request, body, _CONTENT_TYPES[".html"], headers=headers)

        return answer

    def version(self) -> str:
        """Digest of all files, for their address."""
        paths = self._list_files()
        plotly = plotly_file()
        stamps = tuple(
            (path, path.stat().st_mtime_ns) for path in [*paths, *filter(None, [plotly])]
        )
        if stamps != self._version[0]:
            digest = blake2b(digest_size=8)
            for path in paths:
                digest.update(str(path).encode() + b"\0" + self._read(path))
            if plotly is not None:
                digest.update(f"{plotly} {plotly.stat().st_size} {stamps[-1][1]}".encode())
            self._version = stamps, digest.hexdigest()
        return self._version[1]

    def _find(self, name: str) -> Path | None:
        """The file of that name; a name with `..` is none of them."""
        if name == PLOTLY_NAME:
            return plotly_file()
        return next((path for path in self._list_files() if path == self._directory / name), None)

    def _list_files(self) -> list[Path]:
        return sorted(
            path
            for path in self._directory.rglob("*")
            if path.suffix in _CONTENT_TYPES and path.is_file()
        )

    def _read(self, path: Path) -> bytes:
        changed = path.stat().st_mtime_ns
        known = self._bodies.get(path)
        if known is None or known[0] != changed:
            known = self._bodies[path] = changed, path.read_bytes()
        return known[1]

    def _plotly_response(self, request: Request, path: Path, headers: dict[str, str]) -> Response:
        headers = headers | {"content-type": _CONTENT_TYPES[".js"], "vary": "accept-encoding"}
        if not accepts_gzip(request):
            return Response(path.read_bytes(), headers=headers)
        if self._compressed_plotly is None:
            self._compressed_plotly = gzip.compress(path.read_bytes(), 6, mtime=0)
        return Response(self._compressed_plotly, headers=headers | {"content-encoding": "gzip"})


def plotly_file() -> Path | None:
    """The script in the installed package, which is not imported; None without the extra `web`."""
    spec = find_spec("plotly")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder, "package_data", PLOTLY_NAME)
        if path.is_file():
            return path
    return None
