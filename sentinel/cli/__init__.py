"""The `sentinel` command, one file a verb."""
