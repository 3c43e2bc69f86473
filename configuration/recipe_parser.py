"""YAML files and command-line options → `Recipe`, through jsonargparse.

jsonargparse takes `Seq2SeqTrainingArguments` as it is: all its fields are options with types, and the object is built
only when parsing has succeeded, so that `--help` and `--print_config` touch no device.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import logging
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser
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
    *("attention_activation", "attention_scaling", "attention_gamma", "attention_gamma_learnable", "attention_alpha"),
    *("regularization_weight", "entropy_margin"),
)


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """YAML's plain values, each key once: the second section of a name would replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands here twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def recipe_layers(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """A recipe file and those it stands on by `base:`, the lowest first: (path, what it says but for `base`).

    `base` is the path of a recipe, from the file's own folder, or the bare name of one there or in the package.

    Raises:
        UserError: a file that is no YAML, or a base that does not exist or stands on the file itself.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    at: Path | None = Path(path)
    while at is not None:
        if any(Path(above).resolve() == at.resolve() for above, _ in layers):
            raise UserError(f"{path}: base: {at} stands on itself")
        says = _read(at)
        base = says.pop("base", None)
        layers.append((str(at), says))
        at = None if base is None else _base_of(at, base)
    return layers[::-1]


def _read(path: Path) -> dict[str, Any]:
    try:
        says = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{path}{line}: is no YAML: {one_line(getattr(error, 'problem', None) or error)}") from error
    if not isinstance(says, dict):
        raise UserError(f"{path}: holds no keys; a recipe says at least name and data (`reluformer train --help`)")
    return says


def _base_of(path: Path, base: Any) -> Path:
    if isinstance(base, str):
        for candidate in (path.parent / base, path.parent / f"{base}.yaml", RECIPES_FOLDER / f"{base}.yaml"):
            if candidate.is_file():
                return candidate
    raise UserError(
        f"{path}: base: no recipe {base!r}; give a path from the file's folder, or the name of one there or of the "
        f"package's: {', '.join(recipe_names())}"
    )


def _find_recipe(path_or_name: str) -> str:
    if Path(path_or_name).is_file():
        return path_or_name
    if path_or_name in recipe_names():
        return str(RECIPES_FOLDER / f"{path_or_name}.yaml")
    raise UserError(
        f"--config: no file {path_or_name!r}; give the path of a recipe, or the name of one of the package's: "
        f"{', '.join(recipe_names())}"
    )


class _RecipeFile(ActionConfigFile):
    """`--config`: a path, or the bare name of a recipe of the package; a later one is laid over the earlier ones.

    jsonargparse merges sections key by key, but replaces a dictionary: `model` is merged here, so that a layer that
    says `model: {preset: vanilla}` keeps the width and depth of the recipe below. The `description` of a base is not
    inherited: it is of another model.
    """

    def __call__(self, parser: ArgumentParser, cfg: Any, values: str, option_string: str | None = None) -> None:
        for number, (path, says) in enumerate(recipe_layers(_find_recipe(values))):
            _check_keys(says, path)
            below = dict(cfg.get("model") or {})
            if number:
                cfg["description"] = ""
            try:
                super().__call__(parser, cfg, yaml.safe_dump(says, sort_keys=False), option_string)
            except (TypeError, ArgumentError) as error:
                raise UserError(f"{path}: {readable(error)}") from error
            cfg["model"] = _laid_over(below, cfg.get("model") or {}, f"{path}: ")


def _check_keys(says: dict[str, Any], path: str, prefix: str = "") -> None:
    """Refuses unknown keys and values in the place of sections, in which jsonargparse would look for classes to import."""
    for key, value in says.items():
        name = f"{prefix}{key}"
        is_section = f"{name}." in _sections()
        if name not in _known_keys() or "." in str(key):
            raise UserError(f"{path}: there is no key {name!r}{_suggested(name)}")
        if is_section and isinstance(value, dict):
            _check_keys(value, path, f"{name}.")
        elif is_section and value is not None:
            raise UserError(f"{path}: {name} is a section: expected keys, found {value!r}")
        elif "class_path" in str(value):
            raise UserError(f"{path}: {name}: a recipe names no classes; leave class_path out")


@functools.cache
def _sections(kind: type = Recipe, prefix: str = "") -> dict[str, type]:
    """What stands before the keys of each section (`data.demo.`), and the section's dataclass."""
    found = {prefix: kind}
    if kind is Seq2SeqTrainingArguments:
        return found
    for name, hint in typing.get_type_hints(kind).items():
        for part in filter(dataclasses.is_dataclass, (hint, *typing.get_args(hint))):
            found |= _sections(part, f"{prefix}{name}.")
    return found


@functools.cache
def _known_keys() -> list[str]:
    """All keys of a recipe, with their sections, and the fields of the model."""
    kinds = {**_sections(), "model.": ReLUFormerConfig}
    return [
        f"{prefix}{field.name}" for prefix, kind in kinds.items() for field in dataclasses.fields(kind) if field.init
    ]


def _suggested(key: str, dashes: str = "") -> str:
    """The end of a message about an unknown key: the keys of this name in other sections, or similar ones."""
    name, known = key.rpartition(".")[2], _known_keys()
    found = [full for full in known if full.rpartition(".")[2] == name] or difflib.get_close_matches(key, known)
    told = " or ".join(f"{dashes}{full}" for full in found)
    return f"; did you mean {told}?" if told else "; `reluformer train --help` lists all keys"


def _laid_over(below: dict[str, Any], layer: dict[str, Any], where: str) -> dict[str, Any]:
    """A section `model` laid over another. A preset whose rows sum to one leaves out what the one below says of ReLU's."""
    if layer.get("preset") == "softmax":
        layer = {**layer, "preset": "vanilla"}
    activation = ReLUFormerConfig.presets.get(layer.get("preset"), {}).get("attention_activation")
    if activation in NORMALIZED:
        left_out = [name for name in _OF_POINTWISE_ATTENTION if name in below and name not in layer]
        if below.get("attn_implementation") not in (None, *valid_attention_implementations(activation)):
            left_out += [] if "attn_implementation" in layer else ["attn_implementation"]
        if left_out:
            said = ", ".join(f"{name}={below[name]}" for name in left_out)
            logger.warning("%smodel.preset %s leaves out what belongs to ReLU: %s", where, layer["preset"], said)
        below = {name: value for name, value in below.items() if name not in left_out}
    return {**below, **layer}


def recipe_parser(prog: str = "reluformer train") -> ArgumentParser:
    """The parser of a recipe: `--config` files and one option for every key."""
    parser = ArgumentParser(
        prog=prog,
        description="Trains a model after a recipe.",
        exit_on_error=False,
        allow_abbrev=False,
        print_config=None,
        default_env=False,
    )
    parser.add_argument(
        "--config",
        action=_RecipeFile,
        help="recipe: a YAML file; several are laid over each other; the first words of the command need no --config",
    )
    parser.add_class_arguments(Recipe)
    parser.set_defaults(TRAINING_DEFAULTS)
    return parser


def parse_namespace(parser: ArgumentParser, arguments: Sequence[str]) -> Any:
    """The namespace of command-line arguments; see [`parse_recipe`] for errors.

    A recipe that is given another name by `--name` is another model, and loses its description too.
    """
    options = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    known = {*_known_keys(), *(string[2:] for action in parser._actions for string in action.option_strings)}
    for name in options:
        if name not in known and not name.startswith("model."):
            raise UserError(f"there is no option --{name}{_suggested(name, '--')}")
    try:
        namespace = parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise UserError(readable(error)) from error
    given = {name.removeprefix("model.") for name in options if name.startswith("model.")}
    below, layer = ({k: v for k, v in namespace.model.items() if (k in given) is over} for over in (False, True))
    namespace.model = _laid_over(below, layer, "--")
    if "name" in options and "description" not in options:
        namespace.description = ""
    return namespace


def build_recipe(parser: ArgumentParser, namespace: Any) -> Recipe:
    """The recipe of a parsed namespace, with the run folder filled in.

    Raises:
        UserError: values that are well typed yet cannot be trained.
    """
    if namespace.training.output_dir is None:
        namespace.training.output_dir = str(Path("runs") / namespace.name)
    try:
        values = parser.instantiate(namespace)
    except (ValueError, ImportError) as error:  # what Seq2SeqTrainingArguments raises for an impossible combination
        if "bf16/gpu" in str(error):
            raise UserError(
                "training.bf16: true, but there is no GPU here that computes bfloat16; add `--training.use_cpu true` to train on "
                "the CPU, or leave it out"
            ) from error
        raise UserError(f"training: {one_line(error)}") from error
    recipe = Recipe(**{field.name: values[field.name] for field in dataclasses.fields(Recipe)})
    check_recipe(recipe)
    return recipe


def parse_recipe(arguments: Sequence[str]) -> Recipe:
    """The recipe of command-line arguments: `["--config", "a.yaml", "--training.max_steps", "100"]`.

    Raises:
        UserError: an unknown key, a value of a wrong type, a missing file, a missing key; one line.
    """
    parser = _parser_of_recipes()
    return build_recipe(parser, parse_namespace(parser, arguments))


_parser_of_recipes = functools.cache(recipe_parser)  # some 400 options, which take a quarter of a second


def load_recipe(*paths: str | Path) -> Recipe:
    """The recipe of YAML files, later ones laid over earlier ones; see [`parse_recipe`] for errors."""
    return parse_recipe([argument for path in paths for argument in ("--config", str(path))])


class _DefaultArguments(Seq2SeqTrainingArguments):
    """Training arguments that look for no devices: doing so a second time ends the run's connection to other processes."""

    device = torch.device("cpu")


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain values that [`load_recipe`] reads back.

    All our own keys are written; of the training arguments those that differ from Transformers' defaults, since
    versions of Transformers differ in what else they have.
    """
    training, names = recipe.training, {field.name for field in dataclasses.fields(recipe.training) if field.init}
    defaults = _DefaultArguments(output_dir=training.output_dir).to_dict()
    given = {name: value for name, value in training.to_dict().items() if name in names and value != defaults[name]}
    values = dataclasses.asdict(dataclasses.replace(recipe, training=None))
    values["training"] = {"output_dir": training.output_dir, **given}
    return json.loads(json.dumps(values, default=str))  # in JSON's own types: YAML knows no PositiveInt


# What jsonargparse says of a section that may be missing, such as `data.demo`: every type it tried, with class paths.
_SECTION_ERROR = re.compile(
    r'Parser key "([^"]+)": Does not validate .*?Problem with given class_path \S+: (.*?) - Expected a '
)


def readable(error: BaseException) -> str:
    """jsonargparse's message in one line."""
    message = one_line(error)
    if section := _SECTION_ERROR.search(message):
        return f"{section[1]}: {section[2]}"
    if message.startswith("unrecognized arguments"):
        message += "; recipes stand before all options, or behind --config"
    return message
