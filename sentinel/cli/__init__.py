"""The `sentinel` command: every module without a leading underscore is a subcommand."""
