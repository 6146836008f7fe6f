"""Print the programs that tests need and that are not installed.

With SENTINEL_REQUIRE_STACK=1, as in CI, a missing program is an error.
"""

from __future__ import annotations

import os
import shutil
import sys

# Program, its Debian package, and what is not tested without it.
REQUIRED = (
    ("prometheus", "prometheus", "scraping, rules and dashboards against a real Prometheus"),
    ("promtool", "prometheus", "the syntax of /metrics and of the rules"),
    ("prometheus-alertmanager", "prometheus-alertmanager", "alerts through a real Alertmanager"),
    ("amtool", "prometheus-alertmanager", "the syntax of Alertmanager's configuration"),
    ("chromium", "chromium", "the pages in a browser"),
)


def main() -> None:
    """Print one line per missing program."""
    missing = [program for program in REQUIRED if shutil.which(program[0]) is None]
    for program, package, tests in missing:
        print(f"missing: {program} (apt-get install {package}): not tested: {tests}")
    if missing and os.environ.get("SENTINEL_REQUIRE_STACK") == "1":
        sys.exit("SENTINEL_REQUIRE_STACK=1 but the programs above are missing.")


if __name__ == "__main__":
    main()
