"""YAML files and command-line options → `Recipe`, with types by jsonargparse.

jsonargparse takes `Seq2SeqTrainingArguments` as it is: all its fields are keys with types, and the object is built only
when parsing has succeeded, so that `--help` touches no device.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import logging
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from transformers import Seq2SeqTrainingArguments

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_checks import check_recipe
from reluformer.modeling_reluformer.attention_reluformer import NORMALIZED
from reluformer.modeling_reluformer.configuration_reluformer import ReLUFormerConfig, valid_attention_implementations

logger = logging.getLogger(__name__)

RECIPES_FOLDER = Path(__file__).parent / "recipes"

# Where a recipe is silent and our default is not Transformers'.
TRAINING_DEFAULTS = {
    "training.output_dir": None,  # runs/<name>
    # True would replace a loss of NaN by the average of earlier ones: a run that does not converge would look well.
    "training.logging_nan_inf_filter": False,
    # Every parameter has a part in every loss, so the search for others in each step is wasted.
    "training.ddp_find_unused_parameters": False,
}
_OF_POINTWISE_ATTENTION = (
    "attention_activation",
    "attention_scaling",
    "attention_gamma",
    "attention_gamma_learnable",
    "attention_alpha",
    "regularization_weight",
    "regularization_share",
    "entropy_margin",
)


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """YAML's plain values, each key once: a second section of the same name would replace the first. `1e-3` is a
    number, and `no` is a word, not a boolean."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:bool" or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                problem = f"the key {key.value!r} stands here twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that either loader, YAML's own or the one above, would read as something else."""


_EXPONENTIAL = ("tag:yaml.org,2002:float", re.compile(r"[-+]?[\d.]+[eE][-+]?\d+$"), [*"-+.0123456789"])
_Loader.add_implicit_resolver(*_EXPONENTIAL)
_Dumper.add_implicit_resolver(*_EXPONENTIAL)


def _plain_values(text: str | bytes, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{where}{line}: is no YAML: {one_line(getattr(error, 'problem', None) or error)}") from error


def recipe_layers(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """A recipe file and those it stands on by `base:`, the lowest first: (path, what it says but for `base`).

    `base` is the path of a recipe, from the file's own folder, or the bare name of one there or in the package.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    at: Path | None = Path(path)
    while at is not None:
        if any(Path(above).resolve() == at.resolve() for above, _ in layers):
            raise UserError(f"{path}: base: {at} stands on itself")
        says = _plain_values(at.read_bytes(), str(at))
        if not isinstance(says, dict):
            raise UserError(f"{at}: holds no keys; a recipe says at least name and data (`reluformer train --help`)")
        base = says.pop("base", None)
        layers.append((str(at), says))
        at = None if base is None else _find_recipe(base, f"{at}: base", at.parent)
    return layers[::-1]


def _find_recipe(name: Any, where: str, folder: Path = Path()) -> Path:
    """A file at this path from a folder, or of this name there or in the package."""
    for path in (folder / str(name), folder / f"{name}.yaml", RECIPES_FOLDER / f"{name}.yaml"):
        if path.is_file():
            return path
    names = ", ".join(recipe_names())
    raise UserError(f"{where}: no file {name!r}; give the path of a recipe, or one of the package's: {names}")


@functools.cache
def _sections(kind: type = Recipe, prefix: str = "") -> dict[str, type]:
    """What stands before the keys of each section (`data.demo.`), and the section's dataclass."""
    sections = {prefix: kind}
    if kind is Seq2SeqTrainingArguments:
        return sections
    for name, hint in typing.get_type_hints(kind).items():
        for part in filter(dataclasses.is_dataclass, (hint, *typing.get_args(hint))):
            sections |= _sections(part, f"{prefix}{name}.")
    return sections


@functools.cache
def _known_keys() -> list[str]:
    """All keys of a recipe, with their sections, and the fields of the model."""
    kinds = {**_sections(), "model.": ReLUFormerConfig}
    return [
        f"{prefix}{field.name}" for prefix, kind in kinds.items() for field in dataclasses.fields(kind) if field.init
    ]


def _suggested(key: str) -> str:
    """The end of a message about an unknown key: the keys of this name in other sections, or similar ones."""
    name, known = key.rpartition(".")[2], _known_keys()
    suggestions = [full for full in known if full.rpartition(".")[2] == name] or difflib.get_close_matches(key, known)
    return (
        f"; did you mean {' or '.join(suggestions)}?" if suggestions else "; `reluformer train --help` lists all keys"
    )


def _check_keys(says: dict[str, Any], where: str, prefix: str = "") -> None:
    """Refuses unknown keys and values in the place of sections, in which jsonargparse would look for classes to
    import."""
    for key, value in says.items():
        name = f"{prefix}{key}"
        is_section = f"{name}." in _sections()
        if name not in _known_keys() or "." in str(key):
            raise UserError(f"{where}: there is no key {name!r}{_suggested(name)}")
        if is_section and isinstance(value, dict):
            _check_keys(value, where, f"{name}.")
        elif is_section and value is not None:
            raise UserError(f"{where}: {name} is a section: expected keys, found {value!r}")
        elif "class_path" in str(value):
            raise UserError(f"{where}: {name}: a recipe names no classes; leave class_path out")


def _lay_over(below: dict[str, Any], says: dict[str, Any], where: str, prefix: str = "") -> None:
    """Lays what a recipe says over those below it: sections and `model` key by key, all other values whole."""
    for key, value in says.items():
        name = f"{prefix}{key}"
        if name == "model":
            below[key] = _model_laid_over(below.get(key) or {}, value or {}, where)
        elif f"{name}." in _sections() and isinstance(value, dict):
            below[key] = below.get(key) or {}
            _lay_over(below[key], value, where, f"{name}.")
        elif value is not None or prefix or f"{name}." not in _sections():  # a section without keys says nothing
            below[key] = value


def _model_laid_over(below: dict[str, Any], layer: dict[str, Any], where: str) -> dict[str, Any]:
    """A section `model` laid over another. A preset whose rows sum to one leaves out what the one below says of
    ReLU's."""
    if not isinstance(layer, dict):
        raise UserError(f"{where}: model: expected keys such as preset, found {layer!r}")
    if layer.get("preset") == "softmax":
        layer = {**layer, "preset": "vanilla"}
    activation = ReLUFormerConfig.presets.get(layer.get("preset"), {}).get("attention_activation")
    if activation in NORMALIZED:
        left_out = [name for name in _OF_POINTWISE_ATTENTION if name in below and name not in layer]
        if below.get("attn_implementation") not in (None, *valid_attention_implementations(activation)):
            left_out += [] if "attn_implementation" in layer else ["attn_implementation"]
        if left_out:
            said = ", ".join(f"{name}={below[name]}" for name in left_out)
            logger.warning("%s: model.preset %s leaves out what belongs to ReLU: %s", where, layer["preset"], said)
        below = {name: value for name, value in below.items() if name not in left_out}
    return {**below, **layer}


@functools.cache  # some 400 keys, which take a quarter of a second
def recipe_parser() -> ArgumentParser:
    """All keys of a recipe with their types and what they mean, for `--help`, and to check values."""
    parser = ArgumentParser(
        prog="reluformer train",
        description="Trains a model after recipes: YAML files, or names of the package's. Each overrides the one "
        "before it, and options override all.",
        exit_on_error=False,
    )
    parser.add_class_arguments(Recipe)
    parser.set_defaults(TRAINING_DEFAULTS)
    return parser


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The name and the value of each option: `--name value` or `--name=value`."""
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise UserError(f"unrecognized argument {word!r}; recipes stand before all options, or after --config")
        value = value if equals else next(words, None)
        if value is None:
            raise UserError(f"{name}: expected a value")
        yield name[2:], value


def recipe_values(arguments: Sequence[str]) -> dict[str, Any]:
    """What `--config` files and options say, the options laid over the files; see [`parse_recipe`] for errors."""
    layers, options = [], {}
    for name, value in _options(arguments):
        if name == "config":
            layers += recipe_layers(_find_recipe(value, "--config"))
            continue
        section, (*parents, key) = options, name.split(".")
        for parent in parents:
            section[parent] = section.get(parent) or {}
            section = section[parent]
        holds_keys = f"{name}." in _sections() or f"{name}.".startswith("model.")  # else jsonargparse reads it
        section[key] = _plain_values(value, f"--{name}") if holds_keys else value
    values: dict[str, Any] = {}
    for where, says in [*layers, ("command line", options)]:
        _check_keys(says, where)
        below, over = (each.get("training") or {} for each in (values, says))
        if "name" in says:  # another run, which inherits neither the description nor the folder of the one below
            values.pop("description", None)
            below.pop("output_dir", None)
        if "num_train_epochs" in over and "max_steps" not in over:  # beside which epochs say nothing
            below.pop("max_steps", None)
        _lay_over(values, says, where)
    return values


# What jsonargparse says of a section that may be missing, such as `data.demo`: every type it tried, with class paths.
_SECTION_ERROR = re.compile(
    r'Parser key "([^"]+)": Does not validate .*?Problem with given class_path \S+: (.*) - Expected a '
)


def build_recipe(values: dict[str, Any]) -> Recipe:
    """The recipe of [`recipe_values`], with the run folder filled in."""
    parser = recipe_parser()
    try:
        namespace = parser.parse_object(values)
    except (TypeError, ArgumentError) as error:
        message = one_line(error)
        section = _SECTION_ERROR.search(message)
        raise UserError(f"{section[1]}: {section[2]}" if section else message) from error
    if namespace.training.output_dir is None:
        namespace.training.output_dir = str(Path("runs") / namespace.name)
    try:
        built = parser.instantiate(namespace)
    except (ValueError, TypeError, ImportError) as error:  # what Seq2SeqTrainingArguments raises for bad settings
        on_cpu = "; add `--training.use_cpu true` to train on the CPU" if "bf16/gpu" in str(error) else ""
        raise UserError(f"training: {one_line(error)}{on_cpu}") from error
    recipe = Recipe(**{field.name: built[field.name] for field in dataclasses.fields(Recipe)})
    check_recipe(recipe)
    return recipe


def parse_recipe(arguments: Sequence[str]) -> Recipe:
    """The recipe of command-line arguments: `["--config", "a.yaml", "--training.max_steps", "100"]`.

    Raises:
        UserError: an unknown or missing key, a value of a wrong type or that cannot be trained, a missing file; one
            line.
    """
    return build_recipe(recipe_values(arguments))


def load_recipe(*paths: str | Path) -> Recipe:
    """The recipe of YAML files, later ones laid over earlier ones, to be read and not trained by; as
    [`parse_recipe`]."""
    values = recipe_values([argument for path in paths for argument in ("--config", str(path))])
    for precision in () if torch.cuda.is_available() else ("bf16", "fp16", "tf32"):
        (values.get("training") or {}).pop(precision, None)  # what a GPU trained is looked at without one, too
    return build_recipe(values)


class _DefaultArguments(Seq2SeqTrainingArguments):
    """Training arguments that look for no devices: doing so a second time ends the run's connection to other
    processes."""

    device = torch.device("cpu")


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain values that [`load_recipe`] reads back: all our own keys, and the training arguments that differ from
    Transformers' defaults, since its versions differ in what else they have."""
    training, names = recipe.training, {field.name for field in dataclasses.fields(recipe.training) if field.init}
    defaults = _DefaultArguments(output_dir=training.output_dir).to_dict()
    changed = {name: value for name, value in training.to_dict().items() if name in names and value != defaults[name]}
    values = dataclasses.asdict(dataclasses.replace(recipe, training=None))
    values["training"] = {"output_dir": training.output_dir, **changed}
    return json.loads(json.dumps(values, default=str))  # in JSON's own types: YAML knows no PositiveInt


def recipe_text(recipe: Recipe) -> str:
    """YAML that [`load_recipe`] reads back."""
    return yaml_text(recipe_to_dict(recipe))


def yaml_text(says: dict[str, Any]) -> str:
    """What a recipe says, as the text of its file."""
    return yaml.dump(says, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
