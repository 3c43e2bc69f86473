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


def find(dotted: str):
    """The object of a dotted name, and whether a class holds it."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(find(module), name)


def documented() -> list[str]:
    """Names on the page, and the members that are listed with each."""
    found = []
    for name, options in DIRECTIVE.findall(PAGE):
        members = re.search(r":members: ([^\n]+)", options)
        found += [name, *(f"{name}.{member}" for member in members[1].split(", "))] if members else [name]
    return found


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


@pytest.mark.parametrize("name", documented())
def test_what_is_on_the_page_is_documented(name):
    thing = find(name)
    thing = thing.fget if isinstance(thing, property) else thing
    text = inspect.getdoc(thing)
    assert text, f"{name} has no docstring"
    if name.removeprefix("reluformer.") not in reluformer.__all__:
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
