"""The search of ruptures needs no scipy; what needs it imports it when it is called."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from sentinel.pipeline.onset import estimate_onset

points = [(step, 0.1 + 0.01 * (step * 7 % 5) + (step >= 120)) for step in range(160)]
assert estimate_onset(points, 122).step == 120
assert not [name for name in sys.modules if name.split(".")[0] == "scipy"]

import ruptures

signal = [[float(step >= 50)] for step in range(100)]
for search in (ruptures.Binseg(model="rank"), ruptures.Window(model="rbf", width=20)):
    assert search.fit_predict(__import__("numpy").array(signal), n_bkps=1) == [50, 100]
assert "scipy.stats" in sys.modules

from scipy.spatial.distance import pdist
assert pdist.__module__ == "scipy.spatial.distance"
"""


def test_scipy_is_imported_only_if_a_function_of_it_is_called():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=240)
