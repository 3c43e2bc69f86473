"""Loading a folder reads no file outside of it."""

import json
import shutil

import pytest

from reluformer import Translator
from reluformer.commands.main import main
from reluformer.configuration.errors import UserError
from reluformer.translating.loading import load_model_and_tokenizer

from ..conftest import demo_tokenizer, tiny_model


@pytest.fixture
def sharded(tmp_path):
    """A folder whose weights are in several files."""
    tokenizer, folder = demo_tokenizer(50), tmp_path / "model"
    tiny_model(vocab_size=len(tokenizer), activation_function="relu").save_pretrained(folder, max_shard_size="8KB")
    tokenizer.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_weights_in_several_files_are_read(sharded):
    assert load_model_and_tokenizer(sharded)[0].config.d_model == 16


@pytest.mark.parametrize("place", ["..", "shards", "absolute"])
def test_an_index_names_files_of_its_folder_alone(place, sharded, capsys):
    index = sharded / "model.safetensors.index.json"
    held = json.loads(index.read_text())
    inside = held["weight_map"]["final_logits_bias"]
    outside = (sharded / inside if place == "absolute" else sharded / place / inside).resolve()
    outside.parent.mkdir(exist_ok=True)
    if place != "absolute":
        shutil.move(sharded / inside, outside)
    name = str(outside) if place == "absolute" else f"{place}/{inside}"
    held["weight_map"] = {tensor: name if file == inside else file for tensor, file in held["weight_map"].items()}
    index.write_text(json.dumps(held))
    says = f"model.safetensors.index.json names '{name}', and an index may only name files in its own folder"
    for load in (load_model_and_tokenizer, Translator.from_pretrained):
        with pytest.raises(UserError) as error:
            load(sharded)
        assert says in str(error.value)
    assert main(["translate", "--model", str(sharded), "eins"]) == 2
    assert says in capsys.readouterr().err
