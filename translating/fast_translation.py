"""Translating on a CPU without the model's modules: the encoder and a step of decoding as one compiled call each.

The search is that of Transformers' `generate`, for greedy decoding and beams; in float32 its translations are those of
`generate`. With `compute` int8, the matrices are held and multiplied in that type; all else stays in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from reluformer.modeling_reluformer.attention_reluformer import scale_of_rows, sinusoidal_table
from reluformer.modeling_reluformer.compiled.library import library, quantized_neurons

if TYPE_CHECKING:  # importing Transformers' modelling code takes longer than a short translation
    from types import SimpleNamespace

    from transformers import PreTrainedModel

COMPUTE = ("float32", "int8")
# Values of the configuration that are computed here.
_SERVED: dict[str, tuple[Any, ...]] = {
    "attention_activation": ("relu", "relu2", "softmax"),
    "attention_output_norm": ("none",),
    "attention_qk_norm": (False,),
    "attention_gate": (False,),
    "activation_function": ("relu",),
    "ffn_output_norm": ("none",),
    "ffn_top_k": (None,),
    "ffn_threshold": (0.0,),
    "activation_sparsity_pattern": (None, 0.0),
}
# Of `GenerationConfig`: what `Search` has, and what only names tokens or writes nothing here.
_OPTIONS = {
    "num_beams",
    "length_penalty",
    "max_new_tokens",
    "max_length",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "use_cache",
}
# At these values they change nothing. A model that Transformers' Trainer has saved names all of them.
_NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "typical_p": 1.0,
    "top_k": 50,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "target_lookbehind": 10,
}
_NEVER = -1.0e9  # the score of a hypothesis that must not be chosen, as in Transformers


class SavedModel(nn.Module):
    """What `FastTranslationModel` takes of a translation model, without the modules that compute it.

    Args:
        config, generation_config: with the names of `ReLUFormerConfig` and `GenerationConfig`.
        weights: tensors by their names in `ReLUFormerForConditionalGeneration`.
    """

    device = torch.device("cpu")

    def __init__(self, config: SimpleNamespace, generation_config: SimpleNamespace, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.config, self.generation_config, self._weights = config, generation_config, weights

    def state_dict(self) -> dict[str, Tensor]:
        return self._weights


def reason_against(model: PreTrainedModel | SavedModel, options: Mapping[str, Any]) -> str | None:
    """Why Transformers' `generate` must translate with this model and these options of `GenerationConfig`; None: it
    need not."""
    config = model.config
    if type(model) is not SavedModel and (reason := _reason_against_modules(model)) is not None:
        return reason
    for name, values in _SERVED.items():
        if getattr(config, name) not in values:
            return f"{name}={getattr(config, name)!r}"
    # a token may be 0, which says nothing elsewhere
    active = {name for name, value in options.items() if value or (name.startswith("forced_") and value == 0)}
    active = {name for name in active if name not in _NEUTRAL or options[name] != _NEUTRAL[name]}
    if others := sorted(name for name in active - _OPTIONS if not name.startswith("_")):
        return f"{', '.join(others)} of GenerationConfig"
    own = model.generation_config
    for name in ("eos_token_id", "decoder_start_token_id"):
        if options.get(name, getattr(own, name)) != getattr(own, name):
            return f"{name} is not that of the model"
    ends = _end_token(own), own.decoder_start_token_id
    if not all(isinstance(token, int) and 0 <= token < config.decoder_vocab_size for token in ends):
        return f"eos_token_id={ends[0]!r} and decoder_start_token_id={ends[1]!r}, of which each must be one token"
    return None


def _end_token(generation_config: Any) -> Any:
    """The token that ends a translation; Transformers' Trainer may write a list of it. Several stay a list."""
    token = generation_config.eos_token_id
    return token[0] if isinstance(token, list) and len(token) == 1 else token


def _reason_against_modules(model: PreTrainedModel) -> str | None:
    from reluformer import ReLUFormerForConditionalGeneration

    kind, device = type(model), model.device.type
    if kind is not ReLUFormerForConditionalGeneration or device != "cpu":
        return f"it serves ReLUFormerForConditionalGeneration on a CPU, not {kind.__name__} on {device}"
    if model.config._attn_implementation not in ("fused", "sdpa"):
        return f"attn_implementation={model.config._attn_implementation!r}"
    for name, module in model.named_modules():
        is_linear, is_norm = name.endswith(("_proj", ".fc1", ".fc2", "lm_head")), name.endswith("_layer_norm")
        wanted = type(module)
        if is_linear:
            wanted = nn.Linear
        elif is_norm:
            wanted = nn.LayerNorm
        # a training's own, see `training.run.divergence`, do nothing here
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if not all(hasattr(hook, "only_in_training") for hook in hooks) or type(module) is not wanted:
            return f"{name} is a {type(module).__name__}, perhaps with hooks"
        if (is_linear or is_norm) and module.weight.dtype != torch.float32:
            return f"{name} is of {module.weight.dtype}"
    return None if model.lm_head.bias is None else "lm_head has a bias"


@dataclass(frozen=True)
class Search:
    """What decides the translations, by the names of `GenerationConfig`."""

    num_beams: int
    max_new_tokens: int
    length_penalty: float = 1.0


class Hypothesis(NamedTuple):
    """Target token ids with the one that ends them, without the start token, and log p(ids | source): NaN if not asked
    for."""

    ids: list[int]
    log_probability: float


class FastTranslationModel:
    """A translation model for CPUs.

    Args:
        model: whose weights it packs into copies; `reason_against` has nothing against it.
        compute: the type of the matrices, one of `COMPUTE`.
    """

    def __init__(self, model: PreTrainedModel | SavedModel, compute: str) -> None:
        config = model.config
        self.config, self.compute = config, compute
        self.end: int = _end_token(model.generation_config)
        self.start: int = model.generation_config.decoder_start_token_id
        self._weights = model.state_dict()
        self._operators = library(large=True)
        tensors = [self._float(f"model.{side}.embed_tokens.weight") for side in ("encoder", "decoder")]
        tensors += [sinusoidal_table(config.max_position_embeddings, config.d_model).float()]
        weight, _, scales = self._matrix("", "lm_head")
        tensors += [self._table_of_row_scales(), weight, self._float("final_logits_bias").flatten(), scales]
        for i in range(config.encoder_layers):
            tensors += self._layer(f"model.encoder.layers.{i}.", config.encoder_attention_heads)
        for i in range(config.decoder_layers):
            tensors += self._layer(f"model.decoder.layers.{i}.", config.decoder_attention_heads, is_decoder=True)
        heads = config.encoder_attention_heads, config.decoder_attention_heads
        scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self._model = torch.classes.reluformer_cpu.TranslationModel(
            tensors, config.encoder_layers, *heads, config.attention_activation, scale
        )
        del self._weights

    def translate(self, sources: list[list[int]], search: Search, scores: bool = False) -> list[Hypothesis]:
        """The best translation of each source, which is given as token ids.

        scores: with its log-probability. Beam search knows it; greedy decoding needs a softmax a step for it.
        """
        lengths = [len(source) for source in sources]
        ids = torch.tensor([token for source in sources for token in source])
        if ids.numel() and not 0 <= ids.min() <= ids.max() < self.config.vocab_size:
            raise IndexError(f"source ids {ids.min()} to {ids.max()}; the model has 0 to {self.config.vocab_size - 1}")
        state = torch.classes.reluformer_cpu.TranslationState(
            self._model.encode(ids, lengths),
            lengths,
            search.max_new_tokens,
            search.num_beams,
            self.config.decoder_attention_heads,
        )
        if search.num_beams == 1:
            return self._greedy(state, len(sources), search, scores)
        return self._beams(state, len(sources), search)

    def _greedy(self, state: Any, sources: int, search: Search, scores: bool) -> list[Hypothesis]:
        translations: list[list[int]] = [[] for _ in range(sources)]
        log_probabilities = torch.full((sources,), 0.0 if scores else math.nan)
        running = list(range(sources))
        tokens, parents = torch.full((sources,), self.start), None
        for _ in range(search.max_new_tokens):
            logits = self._model.step(state, tokens, parents)
            tokens, parents = logits.argmax(dim=1), None
            if scores:
                log_probabilities[running] += logits.log_softmax(dim=1).gather(1, tokens.unsqueeze(1)).squeeze(1)
            chosen = tokens.tolist()
            for row, token in zip(running, chosen, strict=True):
                translations[row].append(token)
            if self.end in chosen:
                kept = [i for i, token in enumerate(chosen) if token != self.end]
                if not kept:
                    break
                running = [running[i] for i in kept]
                parents = torch.tensor(kept)
                tokens = tokens[parents]
        return [Hypothesis(*each) for each in zip(translations, log_probabilities.tolist(), strict=True)]

    def _beams(self, state: Any, sources: int, search: Search) -> list[Hypothesis]:
        beams = search.num_beams
        running = [_Hypotheses(beams, search) for _ in range(sources)]
        everything = list(running)
        tokens, parents = torch.full((sources * beams,), self.start), None
        for position in range(search.max_new_tokens):
            logits = self._model.step(state, tokens, parents)
            scores = torch.tensor([each.scores for each in running]).flatten()
            log_probabilities, indices = self._operators.continuations(logits, scores, beams, 2 * beams)
            last = position + 1 == search.max_new_tokens
            kept, rows, following = [], [], []
            for i, (hypotheses, numbers, own) in enumerate(
                zip(running, log_probabilities.tolist(), indices.tolist(), strict=True)
            ):
                chosen = [divmod(index, logits.shape[1]) for index in own]
                hypotheses.extend(numbers, chosen, self.end, last)
                if not hypotheses.is_done(position + 1):
                    kept.append(hypotheses)
                    rows += [i * beams + parent for parent in hypotheses.parents]
                    following += [sequence[-1] for sequence in hypotheses.sequences]
            if last or not kept:
                break
            running = kept
            tokens, parents = torch.tensor(following), torch.tensor(rows)
        return [each.best for each in everything]

    def _float(self, name: str) -> Tensor:
        return self._weights[name].detach().to(torch.float32).contiguous()

    def _matrix(self, prefix: str, *names: str) -> list[Tensor]:
        """Weight, bias and scales of some linear layers side by side; what does not exist is empty."""
        names = tuple(f"{prefix}{name}." for name in names)
        weight = torch.cat([self._float(f"{name}weight") for name in names])
        biases = [self._weights.get(f"{name}bias") for name in names]
        bias = torch.empty(0) if biases[0] is None else torch.cat([each.detach().float() for each in biases])
        weight, scales = quantized_neurons(weight) if self.compute == "int8" else (weight, torch.empty(0))
        return [weight, bias, scales]

    def _layer(self, prefix: str, heads: int, is_decoder: bool = False) -> list[Tensor]:
        own, cross, attentions = f"{prefix}self_attn.", f"{prefix}encoder_attn.", ["self_attn"]
        tensors = self._matrix(own, "q_proj", "k_proj", "v_proj") + self._matrix(own, "out_proj")
        if is_decoder:
            tensors += self._matrix(cross, "q_proj") + self._matrix(cross, "k_proj", "v_proj")
            tensors += self._matrix(cross, "out_proj")
            attentions.append("encoder_attn")
        tensors += self._matrix(prefix, "fc1") + self._matrix(prefix, "fc2")
        for name in (*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"):
            tensors += [self._float(f"{prefix}{name}.weight"), self._float(f"{prefix}{name}.bias")]
        for attention in attentions:
            log_gamma = self._weights.get(f"{prefix}{attention}.log_gamma")
            tensors.append(torch.ones(heads) if log_gamma is None else torch.exp(-log_gamma.detach().float()))
        return tensors

    def _table_of_row_scales(self) -> Tensor:
        """r_n by the number of visible keys, (positions + 1,); without γ where it is learnable. Empty for a softmax."""
        config = self.config
        if config.attention_activation == "softmax":
            return torch.empty(0)
        visible_keys = torch.arange(config.max_position_embeddings + 1, dtype=torch.float32).clamp_min(1)
        gamma = None if config.attention_gamma_learnable else config.attention_gamma
        scales = scale_of_rows(visible_keys, config.attention_scaling, gamma=gamma, alpha=config.attention_alpha)
        return torch.ones_like(visible_keys) if scales is None else scales


class _Hypotheses:
    """The beams of one sentence, as Transformers' beam search keeps them."""

    def __init__(self, beams: int, search: Search) -> None:
        self.beams, self.search = beams, search
        self.scores = [0.0] + [_NEVER] * (beams - 1)
        self.sequences: list[list[int]] = [[] for _ in range(beams)]
        self.parents = list(range(beams))
        self.finished: list[tuple[float, Hypothesis]] = []  # with the score that the search compares

    def extend(self, numbers: list[float], chosen: list[tuple[int, int]], end: int, last: bool) -> None:
        """Takes the best continuations, in falling order: the first `beams` may end here, those that go on are kept."""
        going: list[tuple[float, int, list[int]]] = []
        length = len(self.sequences[0]) + 1
        for rank, (number, (parent, token)) in enumerate(zip(numbers, chosen, strict=True)):
            if token == end or last:
                if rank < self.beams:
                    hypothesis = Hypothesis([*self.sequences[parent], token], number)
                    self.finished.append((number / length**self.search.length_penalty, hypothesis))
            elif len(going) < self.beams:
                going.append((number, parent, [*self.sequences[parent], token]))
        self.finished = sorted(self.finished, key=lambda each: each[0], reverse=True)[: self.beams]
        self.scores = [number for number, _, _ in going]
        self.parents = [parent for _, parent, _ in going]
        self.sequences = [sequence for _, _, sequence in going]

    def is_done(self, length: int) -> bool:
        """Whether no hypothesis that goes on can become better than the worst that has ended."""
        if not self.scores:
            return True
        if len(self.finished) < self.beams:
            return False
        return self.scores[0] / length**self.search.length_penalty <= self.finished[-1][0]

    @property
    def best(self) -> Hypothesis:
        return self.finished[0][1]
