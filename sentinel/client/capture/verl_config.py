"""verl facts: what the configuration that verl gives its trackers says of a run."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.signals.framework_config import ConfigMetadata, extract_verl_settings, to_fact


def run_metadata(project: Any, experiment: Any, config: Any) -> ConfigMetadata:
    """Framework, algorithm, model and settings; `config` may be None, or lack any of them."""
    version = getattr(sys.modules.get("verl"), "__version__", None)
    told = {"project": project, "experiment": experiment, "framework_version": version}
    found = {name: to_fact(value) for name, value in told.items()}
    known = {name: said for name, said in found.items() if said is not None}
    return {**extract_verl_settings(config), **known, "framework": "verl"}
