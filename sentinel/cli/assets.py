"""`sentinel assets`: rules, dashboards and deployments for a cluster, with its settings."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli._options import JsonOption, error_exit, settings_environ

app = typer.Typer(no_args_is_help=True)


@app.callback()
def assets() -> None:
    """Export Prometheus rules, Grafana dashboards and deployments, with your settings."""


@app.command("list")
def list_assets(json: JsonOption = False) -> None:
    """List the targets with their files, and the options.

    Exit status: 0.
    """
    from sentinel.assets.export import TARGETS, rendered_files
    from sentinel.assets.option import OPTIONS

    if json:
        for target in TARGETS:
            print(jsonlib.dumps({"target": target, "files": [*rendered_files([target], {})]}))
        for each in OPTIONS:
            shown = {"option": each.name, "default": each.default, "meaning": each.meaning}
            print(jsonlib.dumps(shown))
        return
    for target in TARGETS:
        print(target)
        for path in rendered_files([target], {}):
            print(f"  {path}")
    print("\nOptions, set with --set NAME=VALUE:")
    width = max(len(each.name) for each in OPTIONS)
    for each in OPTIONS:
        print(f"  {each.name:<{width}}  {each.meaning} ({each.default or 'none'})")


@app.command()
def export(  # noqa: PLR0913, PLR0917 - the options of the command
    directory: Annotated[Path, typer.Argument(help="Directory to write to; it is created.")],
    targets: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="TARGET", help="Target, as shown by `list`; repeatable."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option, as shown by `list`; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Option to set back to its default."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file instead of sentinel.toml.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show what differs from the files; write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that were changed by hand.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write the files of one or more targets, or check those of an earlier export.

    Options of an earlier export to the directory are kept. The token file, the directory of
    the agents and the address of the pages are taken from the settings. With --check, a file is
    missing, changed (by hand) or outdated (this version would write another one).

    Exit status: 0 on success, 1 if a file differs or was changed by hand, 2 on wrong usage.
    """
    from sentinel.assets.export import ChangedFilesError, differences
    from sentinel.assets.export import export as export_files
    from sentinel.assets.option import option_of, parse_assignment

    if check and (targets or assignments or unset or force):
        message = "--check compares all of an earlier export: give it no other option but --json."
        raise error_exit("assets export", message)
    try:
        if check:
            _print_differences(differences(directory), as_json=json)
            return
        chosen = _checked_targets(targets or [], directory)
        options: dict[str, str | None] = {option_of(name).name: None for name in unset or ()}
        options |= dict(parse_assignment(each) for each in assignments or ())
        defaults = _options_of_settings(config)
        written = export_files(directory, chosen, options, defaults=defaults, force=force)
    except ChangedFilesError as error:
        for path in error.paths:
            print(jsonlib.dumps({"path": path, "state": "changed"}) if json else f"changed  {path}")
        message = "files were changed by hand. Nothing was written; --force replaces them."
        error_exit("assets export", message)
        raise typer.Exit(1) from None
    except OSError as error:
        raise error_exit("assets export", f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise error_exit("assets export", str(error)) from None
    if json:
        print(jsonlib.dumps({"directory": str(directory), "written": written}))
        return
    for path in written:
        print(f"wrote  {path}")
    print(f"{directory} is current; {directory}/deploy/README.md says how to use the files.")


def _print_differences(states: dict[str, str], *, as_json: bool) -> None:
    """Print the files that differ, and exit with status 1 if there are any."""
    for path, state in states.items():
        print(jsonlib.dumps({"path": path, "state": state}) if as_json else f"{state:<8} {path}")
    if states:
        raise typer.Exit(1)
    if not as_json:
        print("All files are as they were exported, and current.")


def _checked_targets(targets: list[str], directory: Path) -> list[str]:
    """The targets. Raises ValueError for an unknown one, or if there is none."""
    from sentinel.assets.export import TARGETS, Manifest
    from sentinel.model.nearest_name import nearest_hint

    known = ", ".join(TARGETS)
    if not targets and Manifest.read(directory) is None:
        raise ValueError(f"name at least one target with --for: {known}.")
    for target in targets:
        if target not in TARGETS:
            hint = nearest_hint(target, TARGETS)
            raise ValueError(f'there is no target "{target}".{hint} Targets are {known}.')
    return targets


def _options_of_settings(config: Path | None) -> dict[str, str]:
    """The options that follow from the settings of the agents. Raises ConfigError, a ValueError."""
    from sentinel.config.config_sources import read_sources, working_directory
    from sentinel.transport.paths import home_dir

    tree = read_sources({}, settings_environ(config), working_directory()).tree
    options = {"prometheus.targets": str(home_dir().absolute() / "targets")}
    if "token_file" in tree:
        token_file = Path(str(tree["token_file"])).expanduser().absolute()
        options["prometheus.token_file"] = str(token_file)
    if "public_url" in tree:
        options["grafana.page_url"] = str(tree["public_url"]).rstrip("/")
    return options
