"""A directory that `sentinel run` adds to PYTHONPATH; every Python loads its `sitecustomize`.

No module imports this package.
"""
