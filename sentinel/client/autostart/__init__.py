"""Bootstrap: a folder for PYTHONPATH, whose only module every Python that starts loads first.

`sentinel run` puts it there. Nothing imports it by this name.
"""
