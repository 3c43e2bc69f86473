"""The API page: every public name is on it, and every docstring names what its function takes."""

import ast
import dataclasses
import importlib
import inspect
import re

import pytest
from transformers import PreTrainedModel

import reluformer

from .pages import ROOT, code_blocks

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|exception):: ([\w.]+)[^\n]*\n((?:   :[^\n]*\n)*)", re.MULTILINE)
# What every reader knows, or what the class that is extended documents.
KNOWN = {"self", "cls", "config", "args", "kwargs"}
# Transformers documents what these take beside what is ReLUFormer's own.
OF_THE_LIBRARY = {"encoder_outputs", "cache", "inputs_embeds", "decoder_inputs_embeds", "use_cache"}

# Docstrings that say it without the parameter's name.
IN_OTHER_WORDS = {
    "reluformer.training.tokenization.MosesStep": "which side is in which language",
    "reluformer.training.tokenization.MosesStep.apply": "tokens of each text",
    "reluformer.Translator.limit": "a source of so many tokens",
    "reluformer.configuration.recipe_parser.load_recipe": "the recipe of yaml files",
    "reluformer.configuration.recipe_parser.save_recipe": "writes the resolved recipe",
    "reluformer.analysis.analyze.Analysed": "what was written, and what a reader should know",
    "reluformer.modeling_reluformer.regularization_reluformer.row_entropy": "entropy h of each row's normalised weights",
    "reluformer.modeling_reluformer.regularization_reluformer.row_penalty": "eq. 7 for each row",
    "reluformer.hub_cards.card.write_card": "others: see `render_card`",
}


def find(dotted: str):
    """The object of a dotted name, and whether a class holds it."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(find(module), name)


def documented() -> dict[str, list[str]]:
    """Names on the page, each with the members that are listed with it."""
    found = {}
    for name, options in DIRECTIVE.findall(PAGE):
        members = re.search(r":members: ([^\n]+)", options)
        found[name] = members[1].split(", ") if members else []
    return found


def everything() -> list[str]:
    return [*documented(), *(f"{name}.{member}" for name, members in documented().items() for member in members)]


def imported_names() -> set[str]:
    """What the README and the pages import from this package."""
    names = set()
    for block in code_blocks("python"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "reluformer":
                names |= {f"{node.module}.{each.name}" for each in node.names}
    return names


def test_every_public_name_is_on_the_page():
    public = {f"reluformer.{name}" for name in reluformer.__all__} | imported_names()
    modules = {name for name in public if inspect.ismodule(find(name))}
    assert public - modules - set(documented()) == set()


@pytest.mark.parametrize("name", everything())
def test_what_is_on_the_page_is_documented(name):
    thing = find(name)
    thing = thing.fget if isinstance(thing, property) else thing
    text = inspect.getdoc(thing)
    assert text, f"{name} has no docstring"
    if said := IN_OTHER_WORDS.get(name):
        assert said in " ".join(text.split()).lower(), f"{name}: its docstring has changed"
        return
    missing = [parameter for parameter in parameters(thing) if not re.search(rf"\b{parameter}\b", text)]
    assert not missing, f"the docstring of {name} does not say what {', '.join(missing)} is"


def parameters(thing) -> list[str]:
    """What a caller gives."""
    if inspect.isclass(thing):
        if issubclass(thing, (PreTrainedModel, BaseException)) or hasattr(thing, "model_type"):
            return []  # the configuration's fields are a generated table
        if dataclasses.is_dataclass(thing):
            return [field.name for field in dataclasses.fields(thing) if field.name in thing.__annotations__]
        if issubclass(thing, tuple):
            return list(thing._fields)
    names = list(inspect.signature(thing).parameters)
    return [name for name in names if name not in KNOWN | OF_THE_LIBRARY]
