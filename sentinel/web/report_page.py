"""The HTML report of runs, or of a result: one file with its styles, scripts and data.

It opens without a server. Its content security policy permits the scripts and styles of the file by
their hashes and nothing else, so that it requests nothing, and a text of the run is never executed.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from sentinel.store.artifact import make_artifact, shown_data
from sentinel.transport.replaced_file import replace_file
from sentinel.web.module_bundle import bundle, read_static
from sentinel.web.static_files import plotly_file

ENTRY, INSIGHT_ENTRY = "report.js", "insight_page.js"
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
  <a class="skip" href="#page">Skip to the content</a>
  <header class="topbar" id="topbar"></header>
  <main class="page" id="page">
    <noscript>
      <p>{summary}</p>
      <p>The charts and tables of this file need JavaScript.</p>
    </noscript>
  </main>
  <div class="toasts" id="toasts" role="status"></div>
  <script type="application/json" id="report-data">{data}</script>
{scripts}
</body>
</html>
"""


def render_report(report: Mapping[str, Any], *, with_charts: bool = True) -> str:
    """The file for the data of `sentinel.report.run_report.collect_report`, as UTF-8 text.

    Without plotly, or without `with_charts`, its curves are small pictures.
    """
    names = [str(run["name"]) for run in report["runs"]]
    return _render(
        ENTRY,
        report,
        title=f"{', '.join(names[:3])}: report of sentinel",
        summary=" ".join(str(run["summary"]) for run in report["runs"]),
        with_charts=with_charts,
    )


def render_insight_page(*results: Any, title: str = "") -> str:
    """The file with the pictures of results of insight, see `make_artifact`, as UTF-8 text.

    Raises TypeError and ValueError for what is no result.
    """
    artifacts = [make_artifact(result) for result in results]
    title = title or ", ".join(dict.fromkeys(each["title"] for each in artifacts))
    report = {
        "generated": time.time(),
        "title": title,
        "runs": [{"name": title, "answers": insight_answers(artifacts)}],
        "comparison": None,
    }
    summary = "Results of sentinel.insight."
    return _render(INSIGHT_ENTRY, report, title=f"{title}: sentinel", summary=summary)


def write_insight_page(result: Any, path: Path | str, *, title: str = "") -> None:
    """Write the picture of a result of insight, or of several in a sequence, to an HTML file.

    The file needs no server. If writing fails, an earlier file stays as it was. Raises OSError, and
    TypeError or ValueError for what is no result.
    """
    results = result if isinstance(result, Sequence) else [result]
    text, path = render_insight_page(*results, title=title), Path(path)
    replace_file(path, text.encode())


def insight_answers(artifacts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the server of a run with these results answers, by path."""
    headers, answers = [], {}
    for number, artifact in enumerate(artifacts):
        # Two results of one name and step would have one id.
        key = str(artifact["id"]) if len(artifacts) == 1 else f"{artifact['id']}.{number}"
        answers[f"api/insight/{key}"] = {
            **artifact,
            "id": key,
            "data": shown_data(artifact["data"]),
        }
        header = {name: value for name, value in artifact.items() if name != "data"}
        headers.append({**header, "id": key, "revision": ""})
    return {"api/run": {"insight": "stored"}, "api/insight": headers, **answers}


def _render(
    entry: str, report: Mapping[str, Any], *, title: str, summary: str, with_charts: bool = True
) -> str:
    library = read_plotly() if with_charts else ""
    style = read_static("style.css")
    scripts = [*([_PRELUDE, library] if library else []), bundle(entry)]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(source_hash, scripts))}",
            f"style-src {source_hash(style)}",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _PAGE.format(
        policy=policy,
        title=escape(title),
        style=style,
        summary=escape(summary),
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


def source_hash(text: str) -> str:
    """A text as a source expression of a content security policy."""
    digest = base64.b64encode(sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
