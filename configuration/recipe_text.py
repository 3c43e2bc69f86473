"""The text of a recipe file, checked as YAML before anything interprets it: a recipe is data and executes nothing.

The libraries do not do this. jsonargparse, which reads the text next, imports what a `class_path` names before it refuses it,
and so a string that stands in place of a section. PyYAML takes a key that stands there twice, and the last value wins; its
tags can name any class, and its aliases can make a few lines stand for billions of values. All of it is refused here, with the
line.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path

import yaml
from transformers import TrainingArguments

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_base import RunSettings

# What a file may be, by its `task`.
RECIPE_KINDS: dict[str, type[RunSettings]] = {
    "translation": Recipe,
}

_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
}
_MERGE, _NULL = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:null"
_IMPORTING_KEYS = ("class_path", "init_args", "dict_kwargs")
# Aliases can make a short text stand for billions of values.
_MOST_VALUES = 100_000


def read_recipe_text(path: str | Path) -> str:
    """The text of a recipe file that is plain YAML: one mapping, each key once, sections as mappings.

    Raises:
        UserError: a file that cannot be read, is not UTF-8 or not such YAML; names the file and the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: is not UTF-8 text (byte {error.start:,}: {error.reason}); a recipe is a YAML file"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        _Checker(path).check(text)
    except RecursionError as error:
        raise UserError(f"{path}: nests too deeply; a recipe has sections with keys, no more") from error
    return text


class _Checker:
    """One pass over the nodes of a YAML document; every error names the file and the line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = 0

    def check(self, text: str) -> None:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            raise UserError(f"{self._place(error.problem_mark)}: is no YAML: {error.problem}") from error
        except yaml.YAMLError as error:  # a character that YAML does not allow
            raise UserError(f"{self._path}: is no YAML: {error.reason} at character {error.position:,}") from error
        if root is None:
            raise UserError(f"{self._path}: is empty; a recipe says at least name and data (`reluformer train --help`)")
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{self._path}: holds no keys; a recipe is a YAML mapping such as `name: mine`")
        self._plain(root)
        self._sections(root, tuple(RECIPE_KINDS.values()), "")

    def _plain(self, node: yaml.Node) -> None:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise UserError(f"{self._path}: stands for more than {_MOST_VALUES:,} values; a recipe has about a hundred")
        if node.tag not in _PLAIN_TAGS:
            raise UserError(
                f"{self._place(node.start_mark)}: the tag {node.tag!r} is refused; a recipe holds plain values alone"
            )
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._plain(item)
        elif isinstance(node, yaml.MappingNode):
            self._keys(node)
            for key, value in node.value:
                self._plain(key)
                self._plain(value)

    def _keys(self, node: yaml.MappingNode) -> None:
        seen = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None:
                raise UserError(f"{self._place(key.start_mark)}: a key must be a word")
            if name in _IMPORTING_KEYS:
                raise UserError(
                    f"{self._place(key.start_mark)}: the key {name!r} is refused; a recipe names no classes"
                )
            if name in seen and key.tag != _MERGE:
                raise UserError(f"{self._place(key.start_mark)}: the key {name!r} stands here twice")
            seen.add(name)
            if key.tag == _MERGE and not all(isinstance(merged, yaml.MappingNode) for merged in _merged(value)):
                raise UserError(f"{self._place(value.start_mark)}: `<<` merges sections, found a value")

    def _sections(self, node: yaml.MappingNode, kinds: Sequence[type], prefix: str) -> None:
        """`kinds`: what the section is in each kind of recipe."""
        sections: dict[str, list[type]] = {}
        for kind in kinds:
            for name, part in section_types(kind).items():
                sections.setdefault(name, []).append(part)
        for key, value in node.value:
            if key.tag == _MERGE:
                for merged in _merged(value):
                    self._sections(merged, kinds, prefix)
                continue
            name = f"{prefix}{key.value}"
            if "." in key.value:
                raise UserError(
                    f"{self._place(key.start_mark)}: the key {name!r} has a dot; write its section around it"
                )
            if key.value not in sections or value.tag == _NULL:
                continue
            if not isinstance(value, yaml.MappingNode):
                raise UserError(f"{self._place(value.start_mark)}: {name} is a section: expected keys, found a value")
            if not all(issubclass(kind, TrainingArguments) for kind in kinds):  # what is deeper is the library's
                self._sections(value, sections[key.value], f"{name}.")

    def _place(self, mark: yaml.Mark | None) -> str:
        return str(self._path) if mark is None else f"{self._path}, line {mark.line + 1}"


def _merged(value: yaml.Node) -> list[yaml.Node]:
    return value.value if isinstance(value, yaml.SequenceNode) else [value]


def section_types(kind: type) -> dict[str, type]:
    """Names of the fields of a recipe's section that are sections themselves, and their dataclasses."""
    hints = typing.get_type_hints(kind)
    return {
        name: part
        for name, hint in hints.items()
        for part in (hint, *typing.get_args(hint))
        if dataclasses.is_dataclass(part)
    }
