"""What every configuration of this package says about zeros in its feed-forward networks: the fields and their checks."""

from huggingface_hub.dataclasses import strict

from .configuration_attention import AttentionConfig


@strict
class FeedForwardConfig(AttentionConfig):
    r"""
    The fields of an FFN's zeros, which mean the same in every configuration of this package. At their defaults an FFN is
    computed as without them. An FFN's activations are what its last projection multiplies; with a gate, these fields are about
    the activation of the gate, and `ffn_l1_weight` about the product.

    Args:
        ffn_top_k (`int`, *optional*):
            Keep the `k` activations of each token that are largest in magnitude, and set the others to 0.
        activation_sparsity_pattern (`float` or list of `float`, *optional*):
            Statistical top-k, by the field's name in Gemma 3n: before the activation, each score becomes
            `relu(score - (mean + std * q))` over the scores of the token, where `q` is the normal quantile of this share, about
            which becomes 0. One number for all layers, or one for each (of encoder, then decoder); 0 leaves a layer as it is.
        ffn_threshold (`float`, defaults to 0.0):
            Set activations to 0 whose magnitude is below it; with a ReLU that is FATReLU.
        ffn_l1_weight (`float`, defaults to 0.0):
            Weight, in the model's own loss, of the mean over FFNs and tokens of `‖a‖₁`, the sum of the activations' magnitudes.
    """

    ffn_top_k: int | None = None
    activation_sparsity_pattern: float | int | list[float | int] | None = None
    ffn_threshold: float | int = 0.0
    ffn_l1_weight: float | int = 0.0

    def sparsity_of_layer(self, layer: int) -> float:
        """The share of `activation_sparsity_pattern` of one layer, from 0; 0 without it."""
        pattern = self.activation_sparsity_pattern
        return float(pattern[layer] if isinstance(pattern, list) else pattern or 0.0)

    def check_feed_forward(self, activation: str, layers: int, *widths: int) -> None:
        """Checks all fields of an FFN's zeros.

        Args:
            activation: of the FFN. layers: how many FFNs there are. widths: of the FFNs.

        Raises:
            ValueError: a value out of range, or a softmax FFN, which has no zeros.
        """
        if self.ffn_top_k is not None and not 1 <= self.ffn_top_k <= min(widths):
            raise ValueError(f"ffn_top_k={self.ffn_top_k} must be from 1 to {min(widths)}, the width of the FFN.")
        for name in ("ffn_threshold", "ffn_l1_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be a finite number of at least 0.")
        self._check_pattern(layers)
        given = {
            name: getattr(self, name)
            for name in ("ffn_top_k", "activation_sparsity_pattern", "ffn_threshold", "ffn_l1_weight")
        }
        if activation == "softmax" and (wrong := [name for name, value in given.items() if value]):
            raise ValueError(
                f"{wrong[0]}={given[wrong[0]]} is for point-wise activations of the FFN; it is 'softmax', whose weights are "
                "never 0 and sum to 1."
            )

    def _check_pattern(self, layers: int) -> None:
        pattern = self.activation_sparsity_pattern
        if isinstance(pattern, list) and len(pattern) != layers:
            raise ValueError(
                f"activation_sparsity_pattern has {len(pattern)} numbers; give one number, or {layers}, one for each layer."
            )
        for share in pattern if isinstance(pattern, list) else [pattern or 0]:
            if not 0 <= share < 1:
                raise ValueError(f"activation_sparsity_pattern={pattern} must hold shares of at least 0 and below 1.")


__all__ = ["FeedForwardConfig"]
