"""The colours of every picture and of the page: ReLU and softmax have one each, wherever they are shown.

They can be told apart with every common kind of colour blindness (after Okabe and Ito's palette), and stand out on a white
ground as on a dark one. Nothing else is drawn in the colours of ReLU and softmax.
"""

from __future__ import annotations

from typing import Any

RELU, SOFTMAX, SPARSEMAX, ENTMAX = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
# Other series: one beside another, and what they are compared with.
PURPLE, OLIVE, TEAL, WINE = "#aa4499", "#808022", "#2a8c82", "#882255"
GREY, BLACK = "#666666", "#222222"
# Cells of a heat map: exactly 0; not seen by the query.
ZERO, HIDDEN = "#ffffff", "#d0d0d0"

_ACTIVATIONS = {
    "relu": RELU,
    "softmax": SOFTMAX,
    "sparsemax": SPARSEMAX,
    "entmax15": ENTMAX,
    "relu2": TEAL,
    "gelu": OLIVE,
    "softplus": ENTMAX,  # in no picture with it
    "identity": GREY,
    "relu6": WINE,
    "sigmoid": BLACK,
}


def color_of(activation: str) -> str:
    """The colour of an attention's activation, `#rrggbb`; one colour for all that have none of their own."""
    return _ACTIVATIONS.get(activation, PURPLE)


def color_of_model(config: Any) -> str:
    """The colour of a model's attention; a configuration that names no activation is that of a softmax model."""
    return color_of(getattr(config, "attention_activation", "softmax"))


def shade(color: str, amount: float) -> str:
    """`color` mixed with white for an amount from 0 to 1, with black for one from -1 to 0; `#rrggbb`."""
    toward = 255 if amount > 0 else 0
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(amount) * (toward - part)):02x}" for part in parts)
