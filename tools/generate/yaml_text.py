"""Generated objects as YAML that people read: keys in their order, long texts folded."""

from __future__ import annotations

from typing import Any

import yaml

WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as in the files written by hand."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _text_node(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > WIDTH else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)


def yaml_text(data: object, comment: str = "") -> str:
    """The document of `data`, below a comment of one line."""
    options: dict[str, Any] = {"sort_keys": False, "width": WIDTH, "allow_unicode": True}
    text: str = yaml.dump(data, Dumper=_Dumper, **options)
    return f"# {comment}\n{text}" if comment else text
