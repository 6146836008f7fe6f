"""Settings, their sources, and plug-ins."""
