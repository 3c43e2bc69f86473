"""Packed rows, beyond what `test_formulas` has of them: labels alone, and hidden tokens within a sequence."""

import pytest
import torch

from ..conftest import random_tokens, tiny_model
from .cases import implementations, padded


@pytest.mark.parametrize("side", ["left", "right"])
def test_packed_labels_are_shifted_by_sequence(side):
    """Labels alone, as one trains: each sequence begins with the start token, not with the last label of the one before."""
    model = tiny_model().double()
    sources = [random_tokens(1, 4), random_tokens(1, 6, seed=1)]
    labels = [random_tokens(1, 5, seed=2), random_tokens(1, 3, seed=3)]
    singles = [model(input_ids=source, labels=target) for source, target in zip(sources, labels, strict=True)]
    packed = model(
        input_ids=torch.cat(sources, dim=1),
        labels=padded(torch.cat(labels, dim=1), 2, side, -100),
        segment_ids=torch.tensor([[1] * 4 + [2] * 6]),
        decoder_segment_ids=padded(torch.tensor([[1] * 5 + [2] * 3]), 2, side, 0),
    )
    found = packed.logits[:, 2:] if side == "left" else packed.logits[:, :-2]
    torch.testing.assert_close(found, torch.cat([single.logits for single in singles], dim=1))
    torch.testing.assert_close(packed.loss, (5 * singles[0].loss + 3 * singles[1].loss) / 8, rtol=1e-6, atol=1e-6)


def test_hidden_tokens_of_packed_sequences_are_invisible(variant):
    """attention_mask and segment_ids together: the logits are those of the sequences without the hidden tokens' keys."""
    source, target = random_tokens(1, 10), random_tokens(1, 7, seed=1)
    segments = {
        "segment_ids": torch.tensor([[1] * 4 + [2] * 6]),
        "decoder_segment_ids": torch.tensor([[1] * 4 + [2] * 3]),
    }
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 0, 1, 1, 1]])
    target_mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0]])
    results = []
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        masks = {"attention_mask": mask, "decoder_attention_mask": target_mask}
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=target, **masks, **segments).logits
            other = source.clone()
            other[mask == 0] = 5
            same = model(input_ids=other, decoder_input_ids=target, **masks, **segments).logits
        torch.testing.assert_close(same, logits)
        results.append(logits)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
