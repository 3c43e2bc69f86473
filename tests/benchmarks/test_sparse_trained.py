"""A trained model with zeros and its twin: the threshold that leaves 95 %, perplexities, and the section of the page."""

import json

import pytest
import torch
from transformers import set_seed

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.training.byte_tokenizer import train_byte_tokenizer

from ..training.tiny_texts import text

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 300,
}


@pytest.fixture
def trained(program):
    return program("speed.sparse_trained")


@pytest.fixture
def folders(tmp_path):
    tokenizer = train_byte_tokenizer(iter([text(1, 40)]), vocab_size=300, max_length=48)
    for name, activation in (("model", "relu"), ("twin", "silu")):
        set_seed(3)
        sizes = {**SIZES, "max_position_embeddings": 48, "hidden_act": activation, "init_std": 0.3}
        config = ReLUFormerDecoderConfig.from_preset("llama_relu", **sizes, ffn_threshold=0.01 * (name == "model"))
        ReLUFormerForCausalLM(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "text.txt").write_text(text(2, 30), encoding="utf-8")
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quick_run_measures_both_states_and_makes_a_section(program, trained, folders):
    output, page, threads = folders / "trained.json", folders / "SPARSE.md", torch.get_num_threads()
    names = [str(folders / name) for name in ("model", "twin")]
    try:
        command = [*names, "--text", str(folders / "text.txt"), "--quick", "--contexts", "6", "--output", str(output)]
        assert trained.main(command) == 0
    finally:
        torch.set_num_threads(threads)
    result = json.loads(output.read_text(encoding="utf-8"))
    first, last = result["states"]
    assert (first["name"], first["threshold"]) == ("as trained", 0.01) and 0.3 < first["zeros"] < 0.7
    assert last["name"] == "95% zeros" and 0.95 <= last["zeros"] < 0.96 and last["threshold"] > 0.01
    assert [(cell["state"], cell["threads"]) for cell in result["cells"]] == [
        (name, count) for name in ("as trained", "95% zeros") for count in (1, 2)
    ]
    for cell, zeros in zip(result["cells"], (first["zeros"], first["zeros"], 0.95, 0.95), strict=True):
        assert cell["generated_zeros"] == pytest.approx(zeros, abs=0.12)
        assert {"float32 twin", "int8 twin", "float32 zeros"} < set(cell["times"])
    tables = program("speed.sparse_tables")
    committed = [tables.read(tables.RESULTS / name) for name in (tables.RESULT, tables.MODELS)]
    written = tables.render(*committed, result)
    assert "## A trained model" in written and "| 95% zeros |" in written and f"{last['perplexity']:.3f}" in written
    assert tables.main(["--trained", str(output), "--output", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == written


def test_the_perplexity_and_the_zeros_are_those_of_the_model(trained, folders):
    options = trained.argparse.Namespace(text=folders / "text.txt", contexts=2)
    model, contexts = trained._load(folders / "model", options)
    found = trained.passed(model, contexts)
    zeros, losses = [], []
    hook = model.model.layers[0].mlp.down_proj.register_forward_pre_hook(
        lambda module, inputs: zeros.append((inputs[0] == 0).double())
    )
    with torch.no_grad():
        for context in contexts.contexts:
            ids = torch.tensor([context])
            losses.append(model(input_ids=ids, labels=ids).cross_entropy.double())
    hook.remove()
    assert found[0] == pytest.approx(torch.stack(losses).mean().exp().item(), rel=1e-4)
    assert found[1] == pytest.approx(torch.cat(zeros, dim=1).mean().item(), abs=1e-9)
    states = trained.states_of(model, contexts)
    assert states[0].perplexity == pytest.approx(found[0]) and model.model.layers[0].mlp.activation_fn.threshold == 0.01
