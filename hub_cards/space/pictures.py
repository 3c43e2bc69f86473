"""The attention map of one head as a picture with a description in words."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from reluformer.analysis.attention_maps import NAMES
from reluformer.analysis.collection import ALL
from reluformer.hub_cards.space.observation import ObservedText, Place

# Points of the picture for one of the page, whose inch has 96: sharp on dense screens too.
_SHARPNESS, _PAGE_INCH = 2, 96


@dataclass(frozen=True)
class Picture:
    """A map. png: the file. width: in points of the page. description: what a reader who does not see it is told."""

    png: bytes
    width: int
    description: str

    @property
    def address(self) -> str:
        """The picture itself as a `data:` address: no file that a page would leave behind."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode('ascii')}"


def draw_map(observed: ObservedText, place: Place) -> Picture:
    """The map of one head, or of the mean over a layer's heads, with tokens on both axes.

    Args:
        observed: a text; `place`: one of its maps (`ObservedText.has`).
    """
    figure = observed.maps.draw(place.module, [observed.weights(place)], [""], cell=0.36, font_size=10)
    figure.suptitle(place_name(observed, place), fontsize=11)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_SHARPNESS * _PAGE_INCH)
    return Picture(stream.getvalue(), round(figure.get_figwidth() * _PAGE_INCH), _describe(observed, place))


def place_name(observed: ObservedText, place: Place) -> str:
    """For example "Cross-attention, layer 2 of 2, head 3 of 4"."""
    heads = observed.heads(place.module)
    head = f"mean of {heads} heads" if place.head == ALL else f"head {place.head} of {heads}"
    return f"{NAMES[place.module]}, layer {place.layer} of {observed.layers(place.module)}, {head}"


def _describe(observed: ObservedText, place: Place) -> str:
    weights = observed.weights(place)
    queries, keys = observed.maps.axes(place.module)
    query, key = divmod(int(weights.argmax()), weights.shape[1])
    hidden = observed.maps.hidden(place.module)
    seen = weights if hidden is None else weights[~hidden]
    return (
        f"Heat map of attention weights. {place_name(observed, place)}. Rows: {len(queries)} tokens that look; columns: "
        f"{len(keys)} tokens looked at. Largest weight {weights.max():.2f}, from {queries[query]} to {keys[key]}; "
        f"{int((seen == 0).sum())} of {seen.numel()} weights are exactly 0."
    )
