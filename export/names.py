"""Names of the files and tensors of an exported model: Optimum's."""

from __future__ import annotations

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_with_past_model.onnx"
GRAPHS = (ENCODER_FILE, DECODER_FILE)


def cache_names(kind: str, of: str, layers: int) -> list[str]:
    """Names of the key and the value of each layer. kind: past_key_values | present. of: decoder | encoder."""
    return [f"{kind}.{layer}.{of}.{part}" for layer in range(layers) for part in ("key", "value")]
