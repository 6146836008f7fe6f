"""Integrations, one file per framework: patches that record what the framework does.

A module names the framework's module in `FRAMEWORK`. Once that is imported during a run,
`attach(patcher)` patches it; the patches are undone at the end of the run.
"""
