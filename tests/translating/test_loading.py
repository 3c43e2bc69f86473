"""Loading a folder reads no file outside of it."""

import json
import shutil
from contextlib import nullcontext

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


def test_tokens_of_generation_are_those_of_the_targets(tmp_path):
    tokenizer = demo_tokenizer(50)
    pieces = len(tokenizer) + 5  # of the targets; a source has fewer
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": pieces}
    model = tiny_model(vocab_size=len(tokenizer), **fields)
    tokenizer.save_pretrained(tmp_path)
    for token, is_allowed in ((pieces - 1, True), (pieces, False)):
        model.generation_config.decoder_start_token_id = token
        model.save_pretrained(tmp_path)
        refused = pytest.raises(UserError, match=f"decoder_start_token_id is {token}; .* one of the {pieces} pieces")
        with nullcontext() if is_allowed else refused:
            load_model_and_tokenizer(tmp_path)


def test_a_pickle_beside_damaged_weights_is_not_what_is_wrong(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"its model cannot be loaded: .*header"):
        load_model_and_tokenizer(tmp_path)


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
