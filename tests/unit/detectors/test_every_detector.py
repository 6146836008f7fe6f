"""Contract of detectors, checked for each module of `sentinel.detectors`."""

from __future__ import annotations

import pytest

from sentinel.config.plugins import load_classes
from sentinel.testing import check_detector

DETECTORS = load_classes("detectors")


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_passes_check_detector(name):
    check_detector(DETECTORS[name])
