"""The HTML report: one file with its styles, scripts and data, which opens without a server.

Its content security policy permits the scripts and styles of the file by their hashes and nothing
else, so that it requests nothing, and a text of the run is never executed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any

from sentinel.web.module_bundle import bundle, read_static
from sentinel.web.static_files import plotly_file

ENTRY = "report.js"
_HTML_CHARACTERS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

_PRELUDE = """\
document.head.appendChild = (node) =>
  node instanceof HTMLStyleElement ? node : Node.prototype.appendChild.call(document.head, node);
"""
"""Drops the style elements that plotly adds for maps, which the policy would refuse.

Its other rules go to the sheet with the id `plotly.js-style-global`, through the object model.
"""

_PAGE = """\
<!doctype html>
<html lang="en" class="report">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="{policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <meta name="referrer" content="no-referrer">
  <meta name="robots" content="noindex">
  <title>{title}</title>
  <link rel="icon" href="data:,">
  <style id="plotly.js-style-global">{style}</style>
</head>
<body>
  <a class="skip" href="#page">Skip to the report</a>
  <header class="topbar" id="topbar"></header>
  <main class="page" id="page">
    <noscript>
      <p>{verdict}</p>
      <p>The charts and tables of this report need JavaScript.</p>
    </noscript>
  </main>
  <div class="toasts" id="toasts" role="status"></div>
  <script type="application/json" id="report-data">{data}</script>
{scripts}
</body>
</html>
"""


def render_report(report: Mapping[str, Any], *, with_charts: bool = True) -> str:
    """The file for the data of `sentinel.insight.run_report.collect_report`, as UTF-8 text.

    Without plotly, or without `with_charts`, its curves are small pictures.
    """
    library = read_plotly() if with_charts else ""
    style = read_static("style.css")
    scripts = [*([_PRELUDE, library] if library else []), bundle(ENTRY)]
    names = [str(run["name"]) for run in report["runs"]]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {_hash(style)}",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _PAGE.format(
        policy=policy,
        title=escape(f"{', '.join(names[:3])}: report of sentinel"),
        style=style,
        verdict=escape(" ".join(str(run["verdict"]["text"]) for run in report["runs"])),
        data=embed_json(report),
        scripts="\n".join(f"  <script>{text}</script>" for text in scripts),
    )


def fixed_bytes(*, with_charts: bool) -> int:
    """Size of a report without its data, in bytes."""
    library = read_plotly() if with_charts else ""
    return sum(len(text.encode()) for text in (library, read_static("style.css"), bundle(ENTRY)))


def read_plotly() -> str:
    """The chart library of the installed package plotly; empty without the extra `web`."""
    path = plotly_file()
    return "" if path is None else path.read_text(encoding="utf-8")


def embed_json(value: Any) -> str:
    r"""The value as JSON of ASCII that may stand inside a script element.

    >>> embed_json("</script>\u2028")
    '"\\u003c/script\\u003e\\u2028"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, code in _HTML_CHARACTERS.items():
        text = text.replace(character, code)
    return text


def _hash(text: str) -> str:
    """A text as a source expression of a content security policy."""
    digest = base64.b64encode(sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
