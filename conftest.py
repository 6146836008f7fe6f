"""Settings of pytest for the whole repository."""

# These modules import their framework, which may not be installed.
collect_ignore_glob = ["sentinel/integrations/callbacks/*"]
