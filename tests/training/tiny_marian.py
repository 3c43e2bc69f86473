"""Randomly initialised Marian models and a small SentencePiece tokenizer, on disk as the real ones are."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

VOCABULARY = 50
SMALL = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 40,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}


def marian_model(seed: int = 0, **fields) -> MarianMTModel:
    """The padding token is the last one, and starts the decoder, as in the models of Helsinki-NLP."""
    fields = {**SMALL, **fields}
    pad = min(fields["vocab_size"], fields.get("decoder_vocab_size") or fields["vocab_size"]) - 1
    config = MarianConfig(**{"pad_token_id": pad, "decoder_start_token_id": pad, **fields})
    torch.manual_seed(seed)
    model = MarianMTModel(config).eval()
    # Initial biases are zero and weights small: move them, so that a forgotten one is seen, also in the beams.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    model.generation_config.bad_words_ids = [[pad]]
    return model


def save_marian(folder: Path, seed: int = 0, tokenizer: Path | None = None, **fields) -> MarianMTModel:
    """Saves a model, and beside it the files of a tokenizer out of another folder."""
    model = marian_model(seed, **fields)
    model.save_pretrained(folder)
    if tokenizer is not None:
        for path in tokenizer.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    return model


def without(folder: Path, *names: str) -> None:
    """Takes tensors out of a checkpoint."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name in names:
        del weights[name]
    save_file(weights, path, metadata={"format": "pt"})


def train_sentencepiece(folder: Path, pieces: int = 60) -> int:
    """Trains source.spm and target.spm on number words and joins their pieces in vocab.json; its size.

    tokenizer_config.json names the languages alone, as Helsinki-NLP's does.
    """
    import sentencepiece

    from reluformer.training.data.demo_corpus import demo_pairs

    pairs = demo_pairs(400, split="train", seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(pairs[side]),
            model_prefix=str(folder / side),
            vocab_size=pieces,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.vocab").unlink()
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    models = [sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{s}.spm")) for s in ("source", "target")]
    learned = {model.id_to_piece(i) for model in models for i in range(3, model.vocab_size())}
    words = ["</s>", "<unk>", *sorted(learned), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "de", "target_lang": "en"}', encoding="utf-8")
    return len(words)
