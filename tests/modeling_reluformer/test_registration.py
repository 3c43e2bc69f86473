"""Whatever is imported first, Transformers knows this package; and what is not needed is not imported."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

import reluformer
from reluformer.modeling_reluformer import registration
from reluformer.modeling_reluformer.attention_operator import _tell_about_missing_package
from reluformer.modeling_reluformer.compiled.loop import _serves

from .import_orders import ORDERS, SIZES

EVERYDAY = ["ours first", "ours last"]


def outcome(tmp_path, names: list[str], *options: str) -> list[str]:
    program = Path(__file__).with_name("import_orders.py")
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "RELUFORMER_COMPILED": "0"}
    command = [sys.executable, *options, program, tmp_path, *names]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_class_and_name_is_registered_in_either_order(tmp_path):
    assert outcome(tmp_path, EVERYDAY) == [f"{name}: ok" for name in EVERYDAY]


@pytest.mark.slow
def test_every_class_and_name_is_registered_whatever_was_imported_before(tmp_path):
    names = [name for name in ORDERS if name not in EVERYDAY]
    assert outcome(tmp_path, names) == [f"{name}: ok" for name in names]


@pytest.mark.slow
def test_registration_warns_of_nothing(tmp_path):
    assert outcome(tmp_path, EVERYDAY, "-W", "error") == [f"{name}: ok" for name in EVERYDAY]


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that a statement loads."""
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {*result.stdout.split()}


def test_the_package_and_its_command_line_import_neither_torch_nor_transformers():
    statement = "from reluformer.commands.main import main\nfor word in ('--help', '--version'): main([word])"
    loaded = loaded_by(statement)
    assert "reluformer" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "huggingface_hub", "tqdm"}


def test_attention_alone_imports_no_transformers_and_no_compiler():
    code = "from reluformer import relu_attention\nif 'torch._dynamo' in sys.modules: sys.exit('torch._dynamo')"
    assert not loaded_by(code) & {"transformers", "triton", "tokenizers", "huggingface_hub"}


def test_torch_marks_constants_as_this_package_does():
    @torch.compiler.assume_constant_result
    def marked():
        return None

    for function in (_serves, _tell_about_missing_package):
        assert vars(marked).items() <= vars(function).items()


def test_editors_see_the_names_that_are_imported_on_use():
    """The imports under TYPE_CHECKING are the table that is used."""
    tree = ast.parse(Path(reluformer.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    written = {alias.name: node.module for node in block.body for alias in node.names}
    assert written == reluformer._MODULES
    assert set(reluformer.__all__) <= set(dir(reluformer))
    for name in reluformer.__all__:
        assert getattr(reluformer, name) is getattr(importlib.import_module(f"reluformer.{written[name]}"), name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'reluformer' has no attribute 'ReLUFormer'"):
        reluformer.ReLUFormer  # noqa: B018


def test_the_table_of_auto_classes_is_that_of_the_classes():
    for model_type, (config, models) in registration.AUTO_CLASSES.items():
        assert getattr(reluformer, config).model_type == model_type
        for auto_class, model in models.items():
            assert getattr(reluformer, model)._auto_class == auto_class
        assert getattr(reluformer, config)._auto_class == "AutoConfig"


@pytest.mark.slow
def test_the_registered_functions_can_be_compiled():
    """They import what they call, which torch.compile has to look through."""
    config = BertConfig(**SIZES, attn_implementation="reluformer", reluformer={})
    model, ids = BertModel(config).eval(), torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    compiled = torch.compile(model, backend="eager")
    expected = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(compiled(ids, attention_mask=mask).last_hidden_state, expected)


@pytest.mark.parametrize(
    "ask",
    [
        lambda known: list(known.keys()),
        lambda known: list(known.values()),
        lambda known: list(known.items()),
        list,
        len,
        lambda known: known["reluformer"],
        lambda known: known.get("reluformer_vision"),
        lambda known: "reluformer" in known,
    ],
    ids=["keys", "values", "items", "iteration", "length", "item", "get", "in"],
)
def test_whatever_is_asked_of_a_mapping_registers_our_classes_first(ask, monkeypatch):
    known = registration._Registered(theirs=1)
    ours = dict.fromkeys(registration.AUTO_CLASSES, 2)
    monkeypatch.setattr(registration, "register_classes", lambda: dict.update(known, ours))
    assert dict.__len__(known) == 1
    assert ask(known) == ask({"theirs": 1, **ours})
    assert dict.__len__(known) == 1 + len(registration.AUTO_CLASSES)


def test_a_registry_of_another_form_is_left_alone_with_a_warning():
    mapping = SimpleNamespace()
    with pytest.warns(UserWarning, match="register_classes"):
        registration._prepare_mapping(mapping)
    assert vars(mapping) == {}
