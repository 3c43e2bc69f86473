"""What a card says by type of model: its task, how it is loaded and used, and its sizes. A new type is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from reluformer import ReLUFormerConfig, ReLUFormerDecoderConfig, ReLUFormerVisionConfig
from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import IMAGE_SCORES, LANGUAGE_SCORES, TOLD_SCORES, Score
from reluformer.modeling_reluformer.configuration_vision import pair


@dataclass(frozen=True)
class ModelKind:
    """One type of model, as config.json names it.

    config_class: of its config.json.
    task: the Hub's name of what it does, for the pipeline tag and the metadata. task_title: the same for a reader.
    auto_class, preprocessor: Transformers' classes that load the model and what makes its inputs, which the examples call
        `model` and `variable`.
    with_package: (configuration, place of the model) → a program that needs this package.
    use: configuration → what follows after the model is loaded with Transformers alone.
    summary: (configuration, languages) → a sentence.
    settings: configuration → rows (what, value) of the table of training.
    input_limit: configuration → what it does not take.
    material: what it is trained on. product: what it makes of it. map_caption: of the picture of its attention.
    papers: tags of the papers that it is from.
    scores: those of our evaluations that the card tells, the main one first.
    """

    config_class: type[PreTrainedConfig]
    task: str
    task_title: str
    auto_class: str
    preprocessor: str
    variable: str
    with_package: Callable[[Any, str], str]
    use: Callable[[Any], str]
    summary: Callable[[Any, Sequence[str]], str]
    settings: Callable[[Any], list[tuple[str, str]]]
    input_limit: Callable[[Any], str]
    scores: Sequence[Score] = ()
    material: str = "text"
    product: str = "a translation"
    map_caption: str = "Cross-attention weights of one sentence"
    papers: Sequence[str] = ("arxiv:2302.06461",)


def _translator(config: ReLUFormerConfig, location: str) -> str:
    return (
        "from reluformer import Translator\n\n"
        f'translator = Translator.from_pretrained("{location}")\n'
        'print(translator(["…", "…"]))'
    )


def _encoder_decoder(config: ReLUFormerConfig, languages: Sequence[str]) -> str:
    what = f" that translates from `{languages[0]}` to `{languages[1]}`" if len(languages) == 2 else ""
    return (
        f"encoder-decoder Transformer{what}:\n"
        f"{config.encoder_layers} encoder and {config.decoder_layers} decoder layers, width {config.d_model},\n"
        f"{config.encoder_attention_heads} heads, FFN {config.encoder_ffn_dim}, attention activation\n"
        f"`{config.attention_activation}`."
    )


def _encoder_decoder_settings(config: ReLUFormerConfig) -> list[tuple[str, str]]:
    return [
        ("label smoothing", f"{config.label_smoothing:g}"),
        ("dropout (residual, attention)", f"{config.dropout:g}, {config.attention_dropout:g}"),
        ("vocabulary", f"{config.vocab_size:,} pieces"),
    ]


def _continuer(config: ReLUFormerDecoderConfig, location: str) -> str:
    return (
        "import reluformer\nfrom transformers import pipeline\n\n"
        f'continue_text = pipeline("text-generation", model="{location}")\n'
        'print(continue_text("…", max_new_tokens=50)[0]["generated_text"])'
    )


_FFN_NAMES = {"mlp": "FFN", "glu": "gated FFN", "dglu": "FFN gated on both sides"}
_NORM_NAMES = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}


def _decoder_only(config: ReLUFormerDecoderConfig, languages: Sequence[str]) -> str:
    norm = _NORM_NAMES[config.norm_type]
    places = {
        ("pre", True): f"{norm} before each block and at the end",
        ("pre", False): f"{norm} before each block",
        ("none", True): f"no norm but one {norm} at the end",
        ("none", False): "no norm",
    }
    heads = f"{config.num_attention_heads} heads"
    if config.num_key_value_heads < config.num_attention_heads:
        heads += f" that share {config.num_key_value_heads} of keys"
    ffn = f"{_FFN_NAMES[config.ffn_type]} {config.intermediate_size} with `{config.hidden_act}`"
    return (
        f"decoder-only Transformer for text:\n{config.num_hidden_layers} layers, width {config.hidden_size}, {heads},\n"
        f"{ffn}, {places[config.normalization, config.final_norm]},\n"
        f"{config.position_embedding} positions, attention activation `{config.attention_activation}`."
    )


def _decoder_settings(config: ReLUFormerDecoderConfig) -> list[tuple[str, str]]:
    scaled = ", the last projection of each block divided by √(2 · layers)" if config.scale_residual_init else ""
    return [
        ("label smoothing", f"{config.label_smoothing:g}"),
        (
            "dropout (embedding, residual, attention)",
            f"{config.embedding_dropout:g}, {config.dropout:g}, {config.attention_dropout:g}",
        ),
        ("vocabulary", f"{config.vocab_size:,} pieces"),
        ("initial weights", f"standard deviation {config.init_std:g}{scaled}"),
    ]


def _context_limit(config: ReLUFormerDecoderConfig) -> str:
    length = f"{config.max_position_embeddings:,} tokens"
    if config.position_embedding == "learned":
        return f"At most {length} of prompt and continuation together; more are refused."
    return f"Made for contexts of {length}: longer ones are not refused, and what they do was not measured."


def _classifier(config: ReLUFormerVisionConfig, location: str) -> str:
    if config.num_channels == 1:  # a pipeline makes every picture coloured
        return (
            "import reluformer\nfrom PIL import Image\nfrom transformers import AutoImageProcessor\n\n"
            f'processor = AutoImageProcessor.from_pretrained("{location}")\n'
            f'model = reluformer.ReLUFormerForImageClassification.from_pretrained("{location}")\n'
            f"{_classify_a_picture(config)}"
        )
    return (
        "import reluformer\nfrom transformers import pipeline\n\n"
        f'classify = pipeline("image-classification", model="{location}")\n'
        'print(classify("picture.png"))'
    )


def _classify_a_picture(config: ReLUFormerVisionConfig) -> str:
    mode = "L" if config.num_channels == 1 else "RGB"
    return (
        f'picture = Image.open("picture.png").convert("{mode}")  # from PIL import Image\n'
        'logits = model(**processor(picture, return_tensors="pt")).logits\n'
        "print(model.config.id2label[int(logits.argmax())])"
    )


def _vision_transformer(config: ReLUFormerVisionConfig, languages: Sequence[str]) -> str:
    rows, columns = config.patch_grid
    after = "" if config.attention_activation == "softmax" else " ([2309.08586](https://arxiv.org/abs/2309.08586))"
    return (
        f"Vision Transformer{after} for {config.num_labels} classes:\n"
        f"{config.num_hidden_layers} layers, width {config.hidden_size}, {config.num_attention_heads} heads, FFN\n"
        f"{config.intermediate_size}, {rows} × {columns} patches, attention activation `{config.attention_activation}`."
    )


def _vision_settings(config: ReLUFormerVisionConfig) -> list[tuple[str, str]]:
    return [
        ("dropout (residual, attention)", f"{config.hidden_dropout_prob:g}, {config.attention_dropout:g}"),
        ("pooling", config.pooling),
        ("initial weights", config.initialization),
        ("loss", "sigmoids" if config.problem_type == "multi_label_classification" else "softmax"),
    ]


def _picture_size(config: ReLUFormerVisionConfig) -> str:
    height, width = pair(config.image_size)
    return f"Pictures of {height} × {width} pixels; the image processor resizes others to that."


MODEL_KINDS = {
    ReLUFormerConfig.model_type: ModelKind(
        config_class=ReLUFormerConfig,
        task="translation",
        task_title="Translation",
        auto_class="AutoModelForSeq2SeqLM",
        preprocessor="AutoTokenizer",
        variable="tokenizer",
        with_package=_translator,
        use=lambda config: (
            'translation = model.generate(**tokenizer("…", return_tensors="pt"))\n'
            "print(tokenizer.batch_decode(translation, skip_special_tokens=True))"
        ),
        summary=_encoder_decoder,
        settings=_encoder_decoder_settings,
        input_limit=lambda config: (
            f"At most {config.max_position_embeddings:,} tokens a side; longer input is refused."
        ),
        scores=TOLD_SCORES,
    ),
    ReLUFormerDecoderConfig.model_type: ModelKind(
        config_class=ReLUFormerDecoderConfig,
        task="text-generation",
        task_title="Text generation",
        auto_class="AutoModelForCausalLM",
        preprocessor="AutoTokenizer",
        variable="tokenizer",
        with_package=_continuer,
        use=lambda config: (
            'continuation = model.generate(**tokenizer("…", return_tensors="pt"), max_new_tokens=50)\n'
            "print(tokenizer.batch_decode(continuation, skip_special_tokens=True))"
        ),
        summary=_decoder_only,
        settings=_decoder_settings,
        input_limit=_context_limit,
        product="a continuation",
        map_caption="Attention weights of each head over one text",
        scores=LANGUAGE_SCORES,
    ),
    ReLUFormerVisionConfig.model_type: ModelKind(
        config_class=ReLUFormerVisionConfig,
        task="image-classification",
        task_title="Image classification",
        auto_class="AutoModelForImageClassification",
        preprocessor="AutoImageProcessor",
        variable="processor",
        with_package=_classifier,
        use=_classify_a_picture,
        summary=_vision_transformer,
        settings=_vision_settings,
        input_limit=_picture_size,
        scores=IMAGE_SCORES,
        material="pictures",
        product="a class",
        map_caption="Attention of each head over the patches of one picture",
        papers=("arxiv:2302.06461", "arxiv:2309.08586"),
    ),
}


def kind_of(model_type: Any, where: Any) -> ModelKind:
    """The kind of a model.

    Args:
        model_type: as its config.json or its configuration names it.
        where: what holds the model, for the message.

    Raises:
        UserError: a type of which no card can be made here.
    """
    kind = MODEL_KINDS.get(model_type) if isinstance(model_type, str) else None
    if kind is None:
        expected = " or ".join(map(repr, MODEL_KINDS))
        raise UserError(
            f"{where}: holds a model of type {model_type!r}, expected {expected}; for any other model, `create_model_card` and "
            "`push_to_hub` of its Trainer write the card"
        )
    return kind
