"""The model, Eq. 6, Eq. 7 and the loss a second time, from the papers: float64, in loops over sentences, heads, rows
and keys.

Nothing of `reluformer` is imported, and nothing is computed in the same way: a row is the list of its visible keys, so
that n_i is a length; entropies are sums of -p log p; sparsemax and entmax search their threshold. All arrays are
NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

POINTWISE: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "identity": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}
IGNORED = -100


class Row(NamedTuple):
    """One query of one head: n_i, S_i and H_i."""

    visible_keys: int
    total: float
    entropy: float


class Batch(NamedTuple):
    """What a model is given. Masks and segments (batch, length) or None; labels -100 where there is no target."""

    source: np.ndarray
    labels: np.ndarray
    source_mask: np.ndarray | None = None
    target: np.ndarray | None = None
    target_mask: np.ndarray | None = None
    source_segments: np.ndarray | None = None
    target_segments: np.ndarray | None = None


class Losses(NamedTuple):
    loss: float
    cross_entropy: float
    regularization: float
    attention_sum: float
    attention_entropy: float
    dead_row_fraction: float


def no_dropout(field: str, *shape: int) -> np.ndarray:
    return np.ones(shape)


def row_weights(config: Any, gamma: float, scores: list[float]) -> list[float]:
    """Eq. 6: the scores q_i·k_j / sqrt(d) of the visible keys → s_ij."""
    activation, count = config.attention_activation, len(scores)
    if activation == "softmax":
        exponentials = [math.exp(score - max(scores)) for score in scores]
        return [one / sum(exponentials) for one in exponentials]
    if activation == "sparsemax":
        return _with_threshold(lambda threshold: [max(score - threshold, 0.0) for score in scores], max(scores))
    if activation == "entmax15":
        return _with_threshold(
            lambda threshold: [max(score / 2 - threshold, 0.0) ** 2 for score in scores], max(scores) / 2
        )
    factor = 1.0
    if config.attention_scaling == "variance":
        factor = 1 / (gamma * math.sqrt(count / 2))
    elif config.attention_scaling == "length":
        factor = count ** (-config.attention_alpha)
    return [factor * POINTWISE[activation](score) for score in scores]


def _with_threshold(weights: Callable[[float], list[float]], highest: float) -> list[float]:
    """The weights that sum to one; their threshold lies at most 1 below the highest."""
    low, high = highest - 1, highest
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return weights(low)


def row_of(weights: list[float]) -> Row:
    total = sum(weights)
    shares = [weight / total for weight in weights if weight > 0] if total > 0 else []
    return Row(len(weights), total, -sum(share * math.log(share) for share in shares))


def row_penalty(row: Row, margin: float) -> float:
    """Eq. 7; a dead row costs nothing."""
    if row.total <= 0:
        return 0.0
    return abs(math.log(row.total)) + max(row.entropy - margin * math.log(row.visible_keys), 0.0)


def layer_norm(vector: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = vector - sum(vector) / len(vector)
    return centred / math.sqrt(sum(centred**2) / len(vector) + 1e-5) * weight + bias


def gated_rms_norm(vector: np.ndarray, gain: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """ReLA: RMSNorm(z) · g · sigmoid(w ∘ z)."""
    normed = vector / math.sqrt(sum(vector**2) / len(vector) + 1e-6)
    return normed * gain * np.array([1 / (1 + math.exp(-w * z)) for w, z in zip(gate, vector, strict=True)])


class PaperModel:
    """Encoder and decoder of Vaswani et al. (post-LN) with the attention of a configuration.

    config: any object with the fields of the configuration. state: parameters and buffers by Marian's names.
    dropout: the name of a rate and a shape → what the values of that shape are multiplied by.
    """

    def __init__(self, config: Any, state: dict[str, np.ndarray], dropout: Callable[..., np.ndarray] = no_dropout):
        self.config, self.state, self.dropout = config, state, dropout
        self.modules: list[tuple[str, list[list[list[Row]]]]] = []

    def __call__(self, batch: Batch, items: int | None = None) -> tuple[np.ndarray, Losses]:
        """Logits (batch, target, vocabulary), and the losses; items: N."""
        target = self._shifted(batch.labels) if batch.target is None else batch.target
        shared = self.config.share_encoder_decoder_embeddings
        embeddings = [
            self.state["model.shared.weight" if shared else f"model.{stack}.embed_tokens.weight"]
            for stack in ("encoder", "decoder")
        ]
        source = self._embed(embeddings[0][batch.source], batch.source_mask, batch.source_segments)
        encoded = self._encode(source, batch)
        hidden = self._embed(embeddings[1][target], batch.target_mask, batch.target_segments)
        hidden = self._decode(hidden, encoded, batch)
        output = embeddings[1] if self.config.tie_word_embeddings else self.state["lm_head.weight"]
        logits = hidden @ output.T + self.state["final_logits_bias"][0]
        return logits, self._losses(logits, batch, items)

    def attention(
        self, name: str, heads: int, queries: np.ndarray, keys: np.ndarray, visible: Callable[[int, int, int], bool]
    ) -> tuple[np.ndarray, list[list[list[Row]]]]:
        """(batch, queries, d_model), and the rows of each sentence and head. visible(b, i, j) says which keys count."""
        config, width = self.config, queries.shape[-1] // heads
        dropout = no_dropout if config.attention_dropout == 0 else self.dropout
        kept = dropout("attention_dropout", len(queries), heads, queries.shape[1], keys.shape[1])
        projected = [
            self._linear(f"{name}.{part}_proj", states) for part, states in (("q", queries), ("k", keys), ("v", keys))
        ]
        output, rows = np.zeros_like(queries), []
        for b in range(len(queries)):
            rows.append([])
            for h in range(heads):
                columns = slice(h * width, (h + 1) * width)
                query, key, value = (part[b, :, columns] for part in projected)
                if config.attention_qk_norm:
                    query, key = self._norm(f"{name}.q_norm", query), self._norm(f"{name}.k_norm", key)
                gamma = config.attention_gamma
                if config.attention_gamma_learnable:
                    gamma = math.exp(self.state[f"{name}.log_gamma"][h])
                rows[b].append([])
                for i in range(len(query)):
                    seen = [j for j in range(len(key)) if visible(b, i, j)]
                    scores = [float(query[i] @ key[j]) / math.sqrt(width) for j in seen]
                    weights = row_weights(config, gamma, scores) if seen else []
                    for j, weight in zip(seen, weights, strict=True):
                        output[b, i, columns] += kept[b, h, i, j] * weight * value[j]
                    rows[b][h].append(row_of(weights))
        return self._after_heads(name, output, queries), rows

    def _after_heads(self, name: str, merged: np.ndarray, queries: np.ndarray) -> np.ndarray:
        if self.config.attention_output_norm == "layer_norm":
            merged = self._norm(f"{name}.output_norm", merged)
        elif self.config.attention_output_norm == "gated_rms":
            gain, gate = self.state[f"{name}.output_norm.weight"], self.state[f"{name}.output_norm.gate"]
            merged = np.array([[gated_rms_norm(vector, gain, gate) for vector in sentence] for sentence in merged])
        if self.config.attention_gate:
            merged = merged * self._linear(f"{name}.gate_proj", queries)
        return self._linear(f"{name}.out_proj", merged)

    def _encode(self, hidden: np.ndarray, batch: Batch) -> np.ndarray:
        def visible(b: int, i: int, j: int) -> bool:
            return _is_real(batch.source_mask, b, j) and _same(batch.source_segments, batch.source_segments, b, i, j)

        for number in range(self.config.encoder_layers):
            layer = f"model.encoder.layers.{number}"
            heads = self.config.encoder_attention_heads
            hidden = self._attend(layer, "self_attn", heads, hidden, hidden, visible)
            hidden = self._feed_forward(layer, hidden)
        return hidden

    def _decode(self, hidden: np.ndarray, encoded: np.ndarray, batch: Batch) -> np.ndarray:
        def past(b: int, i: int, j: int) -> bool:
            same = _same(batch.target_segments, batch.target_segments, b, i, j)
            return j <= i and same and _is_real(batch.target_mask, b, j)

        def source(b: int, i: int, j: int) -> bool:
            return _is_real(batch.source_mask, b, j) and _same(batch.target_segments, batch.source_segments, b, i, j)

        for number in range(self.config.decoder_layers):
            layer = f"model.decoder.layers.{number}"
            heads = self.config.decoder_attention_heads
            hidden = self._attend(layer, "self_attn", heads, hidden, hidden, past)
            hidden = self._attend(layer, "encoder_attn", heads, hidden, encoded, source)
            hidden = self._feed_forward(layer, hidden)
        return hidden

    def _attend(
        self, layer: str, name: str, heads: int, hidden: np.ndarray, keys: np.ndarray, visible: Callable
    ) -> Any:
        update, rows = self.attention(f"{layer}.{name}", heads, hidden, keys, visible)
        self.modules.append(("encoder" if ".encoder." in layer else "decoder", rows))
        return self._norm(f"{layer}.{name}_layer_norm", hidden + self.dropout("dropout", *hidden.shape) * update)

    def _feed_forward(self, layer: str, hidden: np.ndarray) -> np.ndarray:
        scores = self._linear(f"{layer}.fc1", hidden)
        if self.config.activation_function == "softmax":
            scores = np.exp(scores / self.config.ffn_temperature)
            scores = scores / scores.sum(-1, keepdims=True)
        else:
            scores = np.vectorize(POINTWISE[self.config.activation_function])(scores)
        update = self._linear(f"{layer}.fc2", self.dropout("activation_dropout", *scores.shape) * scores)
        if self.config.ffn_output_norm == "layer_norm":
            update = self._norm(f"{layer}.ffn_layer_norm", update)
        return self._norm(f"{layer}.final_layer_norm", hidden + self.dropout("dropout", *hidden.shape) * update)

    def _embed(self, embedded: np.ndarray, mask: np.ndarray | None, segments: np.ndarray | None) -> np.ndarray:
        features = embedded.shape[-1]
        hidden = embedded * (math.sqrt(features) if self.config.scale_embedding else 1.0)
        for b in range(hidden.shape[0]):
            for i in range(hidden.shape[1]):
                before = [j for j in range(i) if _is_real(mask, b, j) and _same(segments, segments, b, i, j)]
                for k in range(features // 2):
                    angle = len(before) / 10000 ** (2 * k / features)
                    hidden[b, i, k] += math.sin(angle)
                    hidden[b, i, features // 2 + k] += math.cos(angle)
        return hidden * self.dropout("dropout", *hidden.shape)

    def _shifted(self, labels: np.ndarray) -> np.ndarray:
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        return np.array([[start, *(padding if label == IGNORED else label for label in row[:-1])] for row in labels])

    def _linear(self, name: str, states: np.ndarray) -> np.ndarray:
        return states @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def _norm(self, name: str, states: np.ndarray) -> np.ndarray:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return np.apply_along_axis(layer_norm, -1, states, weight, bias)

    def _losses(self, logits: np.ndarray, batch: Batch, items: int | None) -> Losses:
        config = self.config
        items = int((batch.labels != IGNORED).sum()) if items is None else items
        cross_entropy = regularization = 0.0
        for b, i in np.argwhere(batch.labels != IGNORED):
            surprises = np.log(np.exp(logits[b, i]).sum()) - logits[b, i]
            smoothed = config.label_smoothing * surprises.sum() / len(surprises)
            cross_entropy += (1 - config.label_smoothing) * surprises[batch.labels[b, i]] + smoothed
        real: list[Row] = []
        heads: list[int] = []
        for b, sentence in _sentences(batch):
            of_modules = []
            for stack, rows in self.modules:
                chosen = [row for head in rows[b] for i, row in enumerate(head) if i in sentence[stack]]
                real, heads = real + chosen, heads + [len(rows[b])] * len(chosen)
                of_modules.append(sum(row_penalty(row, config.entropy_margin) for row in chosen) / len(chosen))
            regularization += sum(of_modules) / len(of_modules) * len(sentence["decoder"])
        count = sum(1 / head for head in heads)  # rows of a module with more heads count no more
        return Losses(
            (cross_entropy + config.regularization_weight * regularization) / items,
            cross_entropy / items,
            regularization / items,
            sum(row.total / head for row, head in zip(real, heads, strict=True)) / count,
            sum(row.entropy / head for row, head in zip(real, heads, strict=True)) / count,
            sum((row.total == 0) / head for row, head in zip(real, heads, strict=True)) / count,
        )


def _is_real(mask: np.ndarray | None, b: int, j: int) -> bool:
    return mask is None or bool(mask[b, j])


def _same(first: np.ndarray | None, second: np.ndarray | None, b: int, i: int, j: int) -> bool:
    return first is None or bool(first[b, i] == second[b, j])


def _sentences(batch: Batch) -> list[tuple[int, dict[str, set[int]]]]:
    """Each sentence: where it stands in the batch, and which positions of source and target are its own."""
    found = []
    for b in range(len(batch.labels)):
        numbers = [None] if batch.source_segments is None else sorted(set(batch.source_segments[b]) - {0})
        for number in numbers:
            rows = {"encoder": set(), "decoder": set()}
            for i in range(batch.source.shape[1]):
                own = number is None or batch.source_segments[b, i] == number
                if own and _is_real(batch.source_mask, b, i):
                    rows["encoder"].add(i)
            for i in range(batch.labels.shape[1]):
                own = number is None or batch.target_segments[b, i] == number
                if own and batch.labels[b, i] != IGNORED:
                    rows["decoder"].add(i)
            found.append((b, rows))
    return found
