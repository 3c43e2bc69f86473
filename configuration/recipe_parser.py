"""YAML files and command-line options → `Recipe`, through jsonargparse.

jsonargparse takes `Seq2SeqTrainingArguments` as it is: all its fields are options with types, and the object is built
only when parsing has succeeded, so that `--help` and `--print_config` touch no device.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from reluformer.configuration.errors import UserError, one_line
from reluformer.configuration.recipe import Recipe
from reluformer.configuration.recipe_text import RECIPE_KINDS, read_recipe_text, section_types
from reluformer.configuration.whole_files import write_whole
from reluformer.modeling_reluformer.attention_reluformer import NORMALIZED
from reluformer.modeling_reluformer.configuration_reluformer import (
    AttentionConfig,
    ReLUFormerConfig,
    valid_attention_implementations,
)

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


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


class LayeredConfig(ActionConfigFile):
    """`--config`: a path, or the bare name of a recipe of the package; a later one is laid over the earlier ones.

    A file that says `base:` is laid over that recipe, so that a variant holds what differs and nothing else. The base's
    `description` is not inherited: it is of another model.

    jsonargparse merges sections key by key, but replaces a dictionary: `model` is merged here, so that a layer that
    says `model: {preset: vanilla}` keeps the width and depth of the recipe below.
    """

    def __call__(self, parser: ArgumentParser, cfg: Any, values: str, option_string: str | None = None) -> None:
        for number, (path, text) in enumerate(recipe_layers(_find_recipe(values))):
            below = dict(cfg.get("model") or {})
            if number:
                cfg["description"] = ""
            try:
                super().__call__(parser, cfg, path if text is None else text, option_string)
            except (TypeError, ArgumentError) as error:
                raise UserError(f"{path}: {readable(error)}") from error
            cfg["model"] = _laid_over(below, cfg.get("model") or {}, parser.recipe_kind, f"{path}: ")


AnyRecipe = Recipe

# What the section `model` of each kind of recipe is about.
_MODELS: dict[type[AnyRecipe], type[AttentionConfig]] = {
    Recipe: ReLUFormerConfig,
}
_OF_POINTWISE_ATTENTION = (
    *("attention_activation", "attention_scaling", "attention_gamma", "attention_gamma_learnable", "attention_alpha"),
    *("regularization_weight", "entropy_margin"),
)


def _laid_over(below: dict[str, Any], layer: dict[str, Any], kind: type[AnyRecipe], where: str) -> dict[str, Any]:
    """A section `model` laid over another. A preset whose rows sum to one leaves out what the one below says of ReLU's."""
    if kind is Recipe and layer.get("preset") == "softmax":
        layer = {**layer, "preset": "vanilla"}
    activation = _MODELS[kind].presets.get(layer.get("preset"), {}).get("attention_activation")
    if activation in NORMALIZED:
        left_out = [name for name in _OF_POINTWISE_ATTENTION if name in below and name not in layer]
        if below.get("attn_implementation") not in (None, *valid_attention_implementations(activation)):
            left_out += [] if "attn_implementation" in layer else ["attn_implementation"]
        if left_out:
            said = ", ".join(f"{name}={below[name]}" for name in left_out)
            logger.warning("%smodel.preset %s leaves out what belongs to ReLU: %s", where, layer["preset"], said)
        below = {name: value for name, value in below.items() if name not in left_out}
    return {**below, **layer}


_BASE_LINE = re.compile(r"^base[ \t]*:.*$", re.MULTILINE)
# What every recipe without `task` is: the line is for a reader alone.
_TRANSLATION_LINE = re.compile(r"^task[ \t]*:[ \t]*translation[ \t]*(#.*)?$", re.MULTILINE)


def recipe_layers(path: str | Path) -> list[tuple[str, str | None]]:
    """A recipe file and those it stands on by `base:`, the lowest first: (path, its YAML without that line).

    `base` is the path of a recipe, from the file's own folder, or the bare name of one there or in the package. The text
    is None for a file without `base`, which can be read as it is.

    Raises:
        UserError: a base that does not exist, or that stands on the file itself; a file that is no recipe, see
            `read_recipe_text`.
    """
    layers: list[tuple[str, str | None]] = []
    at: Path | None = Path(path)
    while at is not None:
        if any(Path(above).resolve() == at.resolve() for above, _ in layers):
            raise UserError(f"{path}: base: {at} stands on itself")
        text = read_recipe_text(at)
        line = _BASE_LINE.search(text)
        plain = _TRANSLATION_LINE.sub("", _BASE_LINE.sub("", text))
        layers.append((str(at), None if plain == text else plain))
        at = None if line is None else _base_of(at, _base_named(at, line[0]))
    return layers[::-1]


def _base_named(path: Path, line: str) -> Any:
    try:
        return yaml.safe_load(line)["base"]
    except yaml.YAMLError as error:  # the whole file is good YAML: the value goes on in the next line, or is an alias
        raise UserError(f"{path}: base: must be a name or a path on the same line, found {line!r}") from error


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


def recipe_kind(arguments: Sequence[str]) -> type[AnyRecipe]:
    """What kind of recipe the files of `--config` are, by the `task` that the last of them names.

    Raises:
        UserError: an unknown task, or a file that is no recipe.
    """
    task = "translation"
    pairs = zip(arguments, [*arguments, ""][1:], strict=True)
    values = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == "--config"]
    for value in values:
        for path, text in recipe_layers(_find_recipe(value)):
            says = yaml.safe_load(read_recipe_text(path) if text is None else text)
            task = (says or {}).get("task", task)
            if task not in RECIPE_KINDS:
                raise UserError(f"{path}: task: {task!r} is unknown; choose one of {', '.join(RECIPE_KINDS)}")
    return RECIPE_KINDS[task]


def recipe_parser(prog: str = "reluformer train", kind: type[AnyRecipe] = Recipe) -> ArgumentParser:
    """The parser of a recipe of a kind: `--config` files and one option for every key."""
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
        action=LayeredConfig,
        help="recipe: a YAML file; several are laid over each other; the first words of the command need no --config",
    )
    parser.recipe_kind = kind
    parser.add_class_arguments(kind)
    parser.set_defaults(TRAINING_DEFAULTS)
    return parser


def build_recipe(parser: ArgumentParser, namespace: Any, *, find_devices: bool = True) -> AnyRecipe:
    """The recipe of a parsed namespace, with the run folder filled in.

    Args:
        parser: of the namespace.
        namespace: the values.
        find_devices: and join the processes of a launcher; False: the recipe is only to be checked.

    Raises:
        UserError: values that are well typed yet cannot be trained.
    """
    if namespace.training.output_dir is None:
        namespace.training.output_dir = str(Path("runs") / namespace.name)
    sections = {f.name for f in dataclasses.fields(parser.recipe_kind)}
    without = [(lambda kind, **values: _DefaultArguments(**values), TrainingArguments, True)]
    try:
        values = parser.instantiate(namespace, instantiators=None if find_devices else without)
    except (ValueError, ImportError) as error:  # what Seq2SeqTrainingArguments raises for an impossible combination
        if "bf16/gpu" in str(error):
            raise UserError(
                "training.bf16: true, but there is no GPU here that computes bfloat16; add `--training.use_cpu true` to train on "
                "the CPU, or leave it out"
            ) from error
        raise UserError(f"training: {one_line(error)}") from error
    recipe = parser.recipe_kind(**{section: values[section] for section in sections})
    recipe.check()
    return recipe


def parse_namespace(parser: ArgumentParser, arguments: Sequence[str]) -> Any:
    """The namespace of command-line arguments; see [`parse_recipe`] for errors.

    A recipe that is given another name by `--name` is another model, and loses its description too.
    """
    try:
        namespace = parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise UserError(readable(error)) from error
    given = {word[8:].partition("=")[0] for word in arguments if word.startswith("--model.")}
    below, layer = ({k: v for k, v in namespace.model.items() if (k in given) is over} for over in (False, True))
    namespace.model = _laid_over(below, layer, parser.recipe_kind, "--")
    options = {word.partition("=")[0] for word in arguments}
    if "--name" in options and "--description" not in options:
        namespace.description = ""
    return namespace


def parse_recipe(arguments: Sequence[str]) -> AnyRecipe:
    """The recipe of command-line arguments: `["--config", "a.yaml", "--training.max_steps", "100"]`.

    Raises:
        UserError: an unknown key, a value of a wrong type, a missing file, a missing key; one line.
    """
    parser = recipe_parser(kind=recipe_kind(arguments))
    return build_recipe(parser, parse_namespace(parser, arguments))


def load_recipe(*paths: str | Path) -> AnyRecipe:
    """The recipe of YAML files, later ones laid over earlier ones; see [`parse_recipe`] for errors."""
    return parse_recipe([argument for path in paths for argument in ("--config", str(path))])


class _DefaultArguments(Seq2SeqTrainingArguments):
    """Training arguments that look for no devices: doing so a second time ends the run's connection to other processes."""

    @property
    def device(self) -> torch.device:
        self.accelerator_config.pop("use_configured_state", None)  # as the search for devices does
        return torch.device("cpu" if self.use_cpu or not torch.cuda.is_available() else "cuda")


def library_defaults(output_dir: str | None) -> dict[str, Any]:
    """The training arguments as they are where nobody says anything, as plain values."""
    return _DefaultArguments(output_dir=output_dir).to_dict()


def recipe_to_dict(recipe: AnyRecipe) -> dict[str, Any]:
    """Plain values that [`load_recipe`] reads back.

    All our own keys are written; of the training arguments those that differ from Transformers' defaults, since
    versions of Transformers differ in what else they have.
    """
    plain = {
        f.name: dataclasses.asdict(value) if dataclasses.is_dataclass(value := getattr(recipe, f.name)) else value
        for f in dataclasses.fields(recipe)
        if f.name != "training"
    }
    names = {f.name for f in dataclasses.fields(type(recipe.training)) if f.init}
    defaults = library_defaults(recipe.training.output_dir)
    training = {
        name: value
        for name, value in recipe.training.to_dict().items()
        if name in names and (name == "output_dir" or value != defaults.get(name))
    }
    return {**plain, "training": training}


def save_recipe(recipe: AnyRecipe, path: str | Path) -> None:
    """Writes the resolved recipe as YAML, whole or not at all; folders on the way are created."""
    write_whole(path, _saved_text(recipe_to_dict(recipe)))


def is_saved_recipe(text: str) -> bool:
    """Whether a text is one that [`save_recipe`] writes, in this version or an earlier one: not if it has comments or another
    layout or order, lacks a section that is always written, or lists all training arguments as `--print_config` does."""
    plain = yaml.safe_load(text)
    if not isinstance(plain, dict) or text != _saved_text(plain):
        return False
    kind = RECIPE_KINDS.get(plain.get("task", "translation"), Recipe)
    order = [f.name for f in dataclasses.fields(kind) if f.name in plain]
    always = {"name", "description", "averaging", "training", *kind.always_written}
    only_changed = len(plain.get("training") or {}) < len(dataclasses.fields(Seq2SeqTrainingArguments)) / 2
    return list(plain) == order and always <= plain.keys() and only_changed


def _saved_text(plain: dict[str, Any]) -> str:
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


# What jsonargparse says of a section that may be missing, such as `data.demo`: every type it tried, with class paths.
_SECTION_ERROR = re.compile(
    r'Parser key "([^"]+)": Does not validate .*?Problem with given class_path \S+: (.*?) - Expected a '
)
_UNKNOWN_KEY = re.compile(r"(?:Group '([\w.]+)' does not accept )?(?:[Oo]ption '|unrecognized arguments: (--))([\w.]+)")


def readable(error: BaseException) -> str:
    """jsonargparse's message in one line; an unknown key gets its close matches."""
    message = one_line(error)
    if section := _SECTION_ERROR.search(message):
        message = f"{section[1]}: {section[2]}"
    if unknown := _UNKNOWN_KEY.search(message):
        group, dashes, key = unknown.groups(default="")
        close = [f"{dashes}{name}" for name in _near(f"{group}.{key}" if group else key)]
        message += f"; did you mean {' or '.join(close)}?" if close else "; `reluformer train --help` lists all keys"
    elif message.startswith("unrecognized arguments"):
        message += "; recipes stand before all options, or behind --config"
    return message


def _near(key: str) -> list[str]:
    """Keys of recipes, with their sections: those of this name, or of similar ones in its section, or else in any."""
    section, _, name = key.rpartition(".")
    known: dict[str, list[str]] = {}
    for full in _known_keys():
        known.setdefault(full.rpartition(".")[2], []).append(full)
    here = [one for one, fulls in known.items() if any(full.rpartition(".")[0] == section for full in fulls)]
    close = [name] if name in known else difflib.get_close_matches(name, here) or difflib.get_close_matches(name, known)
    found = [full for one in close for full in known[one]]
    return ([full for full in found if full.rpartition(".")[0] == section] or found)[:3]


def _known_keys() -> list[str]:
    names, sections = set(), [(kind, "") for kind in RECIPE_KINDS.values()]
    while sections:
        section, prefix = sections.pop()
        names |= {f"{prefix}{f.name}" for f in dataclasses.fields(section)}
        if not issubclass(section, (TrainingArguments, AttentionConfig)):  # what is deeper is the library's
            sections += [(part, f"{prefix}{name}.") for name, part in section_types(section).items()]
            sections += [(_MODELS[section], "model.")] if section in _MODELS else []
    return sorted(names)
