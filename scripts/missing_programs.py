"""Say which programs some tests need are not here, so that a skip is never a surprise.

With SENTINEL_REQUIRE_STACK=1, as in CI, a missing one is an error.
"""

from __future__ import annotations

import os
import shutil
import sys

# Program, the Debian package that brings it, and what is not tested without it.
WANTED = (
    ("prometheus", "prometheus", "scraping, rules and dashboards against a real Prometheus"),
    ("promtool", "prometheus", "the form of /metrics and of the rules"),
    ("prometheus-alertmanager", "prometheus-alertmanager", "alerts through a real Alertmanager"),
    ("amtool", "prometheus-alertmanager", "the form of Alertmanager's configuration"),
)


def main() -> None:
    """Print one line per missing program."""
    missing = [wanted for wanted in WANTED if shutil.which(wanted[0]) is None]
    for program, package, tests in missing:
        print(f"missing: {program} (apt-get install {package}): not tested: {tests}")
    if missing and os.environ.get("SENTINEL_REQUIRE_STACK") == "1":
        sys.exit("SENTINEL_REQUIRE_STACK=1 and the programs above are missing.")


if __name__ == "__main__":
    main()
