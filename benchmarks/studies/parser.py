"""Study files → rows: families expanded, layers merged, and a key for each row that says what it trains.

Two rows that merge to the same recipe have the same key, whatever they are called: they are trained once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from benchmarks.studies.study import Analysis, AtSize, RowFamily, Study, StudyRow
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import RECIPES_FOLDER, recipe_layers

STUDIES_FOLDER = Path(__file__).parent / "catalogue"
ROWS_FILE = "rows.yaml"
BASES = "bases"
# What a row's figures do not depend on, or what its seed says.
_NOT_IN_THE_KEY = (("name",), ("description",), ("training", "output_dir"), ("training", "seed"))
_NOT_IN_THE_KEY += (("model", "attn_implementation"),)  # the same function, to rounding
_NOT_IN_THE_KEY += (("data", "homepage"),)  # for the message that the corpus is missing


@dataclass(frozen=True)
class Row:
    """One row at one size, without its seed.

    name: of results and run folders. key: of what it trains. recipe: merged, as in a recipe file. values: of its
    family's `each`. start: the row whose trained model it starts from; None for new weights.
    """

    name: str
    key: str
    recipe: dict[str, Any]
    values: dict[str, Any]
    analyses: tuple[Analysis, ...]
    family: str
    start: Row | None = None


def study_names(folder: Path = STUDIES_FOLDER) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml") if path.name != ROWS_FILE)


def load_study(name: str, folder: Path = STUDIES_FOLDER) -> Study:
    """Raises a `UserError` where there is no such study, or its file does not say what a study says."""
    if name not in study_names(folder):
        raise UserError(f"--study: no study {name!r}; choose one of {', '.join(study_names(folder))}")
    path = folder / f"{name}.yaml"
    return _made(Study, yaml.safe_load(path.read_text(encoding="utf-8")), str(path))


@dataclass(frozen=True)
class Catalogue:
    """The rows that exist at one size, by every name they have."""

    size: str
    rows: dict[str, Row]


@dataclass(frozen=True)
class TableRow:
    """A row in the table of a study. name: the one the study uses. row: None where it does not exist at this size."""

    name: str
    label: str
    row: Row | None
    paper: dict[str, Any]
    not_here: str | None
    seeds: tuple[int, ...] = (1,)


def load_rows(size: str, folder: Path = STUDIES_FOLDER) -> Catalogue:
    """All rows at a size. Where several have one key, all of them are the first one, with the analyses of all.

    Raises:
        UserError: the file does not say what rows say.
    """
    path = folder / ROWS_FILE
    rows: dict[str, Row] = {}
    read = functools.cache(functools.partial(_layer, folder=folder))  # many rows stand on the same few files
    for name, says in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        family = _made(RowFamily, says, f"{path}: {name}")
        for values in _all_values(family, size):
            row = _row(name, family, size, values, read)
            if row.name in rows:
                raise UserError(f"{path}: {name} names the row {row.name}, which another one does already")
            rows[row.name] = _started(row, family.starts_from.get(size), rows)
    return Catalogue(size, _joined(rows))


def _started(row: Row, start: str | None, above: Mapping[str, Row]) -> Row:
    """A row that starts from another's model, and so is another one as soon as that model would be."""
    if start is None:
        return row
    name = filled(start, row.values)
    if name not in above:
        raise UserError(f"{ROWS_FILE}: {row.name} starts from {name}, which no row further up is called")
    return dataclasses.replace(row, start=above[name], key=_key({**row.recipe, "initialize_from": above[name].key}))


def _joined(rows: Mapping[str, Row]) -> dict[str, Row]:
    """The rows with the first name and all analyses of those that have the same key."""
    names: dict[str, str] = {}
    analyses: dict[str, dict[str, Analysis]] = {}
    for name, row in rows.items():
        names.setdefault(row.key, name)
        for analysis in row.analyses:
            analyses.setdefault(row.key, {}).setdefault(analysis.what, analysis)
    joined: dict[str, Row] = {}
    for name, row in rows.items():
        start = row.start and joined[row.start.name]
        of_all = tuple(analyses.get(row.key, {}).values())
        joined[name] = dataclasses.replace(row, name=names[row.key], analyses=of_all, start=start)
    return joined


def table_of(study: Study, catalogue: Catalogue) -> list[TableRow]:
    """The rows of a study's table, in its order."""
    table = []
    for entry in study.rows:
        rows = {name: row for name, row in catalogue.rows.items() if entry.row in (name, row.family)}
        seeds = tuple(entry.seeds.get(catalogue.size) or study.seeds.get(catalogue.size, [1]))
        for name, row in rows.items():
            paper = {column: says.get(name) if isinstance(says, dict) else says for column, says in entry.paper.items()}
            table.append(TableRow(name, filled(entry.label, said(row.values)), row, paper, entry.not_here, seeds))
        if not rows:
            table.append(_elsewhere(entry))
    return table


# What a reader calls a value of a family that recipes spell as code does.
SAID = {
    "relu": "ReLU",
    "relu2": "ReLU²",
    "relu6": "ReLU6",
    "gelu": "GELU",
    "silu": "SiLU",
    "identity": "no activation",
    "pre": "with norms",
    "free": "without norms",
}


def said(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row as a label writes them."""

    def word(value: Any) -> Any:
        if isinstance(value, str):
            return SAID.get(value, value)
        return f"{value:,}" if isinstance(value, int) and value >= 1000 else value

    return {name: word(value) for name, value in values.items()}


def _elsewhere(entry: StudyRow) -> TableRow:
    """A row, or one for a whole family, that does not exist at this size: the paper's figures stand there all the
    same."""
    paper = {
        column: " · ".join(map(str, says.values())) if isinstance(says, dict) else says
        for column, says in entry.paper.items()
    }
    label = re.sub(r"\{(\w+)(?::\w+)?\}", r"every \1", entry.label)
    return TableRow(entry.row, label, None, paper, entry.not_here)


def row_of_line(name: str, values: Mapping[str, Any]) -> str | None:
    """The row's name that a name in a plot or a claim stands for, given a row's values; None where they do not fill
    it."""
    try:
        return name.format(**values)
    except KeyError:
        return None


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings laid over each other; anything else is replaced by the later one."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def recipe_of(row: Row, seed: int, output_dir: Path, start_dir: Path | None = None) -> dict[str, Any]:
    """The recipe of one training of a row, as in a recipe file.

    output_dir: the run folder. start_dir: that of what the row starts from, if it does; the tokenizer comes from there,
        too.
    """
    own: dict[str, Any] = {"name": row.name, "training": {"seed": seed, "output_dir": str(output_dir)}}
    recipe = dict(row.recipe)
    if start_dir is not None:
        own["initialize_from"] = str(start_dir)
        recipe.pop("tokenizer", None)
    return merged({"name": row.name}, recipe, own)  # the name first, since a person reads the file


def _all_values(family: RowFamily, size: str) -> Iterator[dict[str, Any]]:
    """The values of every row of a family at a size."""
    if size not in family.sizes:
        return
    axes = {axis: says.get(size, ()) if isinstance(says, dict) else says for axis, says in family.each.items()}
    for combination in itertools.product(*axes.values()):
        values: dict[str, Any] = {}
        for axis, value in zip(axes, combination, strict=True):
            values |= value if isinstance(value, dict) else {axis: value}
        yield values


def _row(name: str, family: RowFamily, size: str, values: dict[str, Any], read: Callable[[str], dict[str, Any]]) -> Row:
    here = family.at.get(size, AtSize())
    layers = family.layers if here.layers is None else here.layers
    files = [read(filled(each, {**values, "size": size})) for each in layers]
    recipe = merged(*files, filled(family.recipe, values), filled(here.recipe, values))
    return Row(filled(name, values), _key(recipe), recipe, values, tuple(family.analyses), name)


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """`template` with `{name}` replaced; a text that is nothing but `{name}` becomes the value itself, with its
    type."""
    if isinstance(template, Mapping):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if template[1:-1] in values and template == f"{{{template[1:-1]}}}":
        return values[template[1:-1]]
    try:
        return template.format(**values)
    except KeyError as error:
        raise UserError(f"{template!r}: no value for {error}; there are {', '.join(values) or 'none'}") from error


def _layer(name: str, folder: Path) -> dict[str, Any]:
    """A file of the studies' bases or a recipe of the package, with what it stands on."""
    candidates = (folder / BASES / f"{name}.yaml", RECIPES_FOLDER / f"{name}.yaml")
    for path in candidates:
        if path.is_file():
            return merged(*(says for _, says in recipe_layers(path)))
    raise UserError(f"{folder / ROWS_FILE}: no layer {name!r}; expected {' or '.join(map(str, candidates))}")


def _key(content: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits of what is trained; independent of the order in which it is written."""
    content = copy.deepcopy(dict(content))
    for *sections, name in _NOT_IN_THE_KEY:
        inner = content
        for section in sections:
            inner = inner.get(section) or {}
        inner.pop(name, None)
    text = json.dumps(_numbers_alike(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _numbers_alike(value: Any) -> Any:
    """8 and 8.0 are one value of a recipe."""
    if isinstance(value, Mapping):
        return {str(key): _numbers_alike(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers_alike(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _made(kind: Any, says: Any, where: str) -> Any:
    """An object of a dataclass, of a list of them or of a dictionary of them, from what a file says; anything else as
    it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list and dataclasses.is_dataclass(arguments[0]):
        return [_made(arguments[0], each, where) for each in says]
    if origin is dict and dataclasses.is_dataclass(arguments[1]):
        return {name: _made(arguments[1], each, where) for name, each in says.items()}
    if not dataclasses.is_dataclass(kind):
        return says
    types = get_type_hints(kind)
    try:
        return kind(**{name: _made(types.get(name), value, where) for name, value in says.items()})
    except TypeError as error:
        raise UserError(f"{where}: {error}") from error
