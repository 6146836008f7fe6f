"""Causes: what may stand behind the incidents of a run, one a file."""
