"""Padding, hidden and later tokens, and the neighbours in a packed row change no result."""

import pytest
import torch

from ..conftest import random_tokens, tiny_model
from .cases import implementations, mask_of, padded


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(variant, side):
    """Source and target, logits and every term of the loss, in float64."""
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        source, target, labels = random_tokens(2, 7), random_tokens(2, 5, seed=1), random_tokens(2, 5, seed=2)
        plain = model(input_ids=source, decoder_input_ids=target, labels=labels)
        with_padding = model(
            input_ids=padded(source, 3, side),
            attention_mask=mask_of(source, 3, side),
            decoder_input_ids=padded(target, 4, side),
            decoder_attention_mask=mask_of(target, 4, side),
            labels=padded(labels, 4, side, -100),
        )
        real = slice(4, None) if side == "left" else slice(None, 5)
        torch.testing.assert_close(with_padding.logits[:, real], plain.logits)
        for name in (
            "loss",
            "cross_entropy",
            "regularization",
            "attention_sum",
            "attention_entropy",
            "dead_row_fraction",
        ):
            expected, found = getattr(plain, name), getattr(with_padding, name)
            if expected is None:
                assert found is None
            else:
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=name)


def test_masked_source_tokens_are_invisible_to_the_decoder(variant):
    """The mixins of the library pass without a cross-attention mask; this does not."""
    model = tiny_model(**variant)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    mask = torch.ones_like(source)
    mask[0, 4:] = 0
    changed = source.clone()
    changed[0, 4:] = random_tokens(3, seed=9)
    with torch.no_grad():
        first = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        second = model(input_ids=changed, attention_mask=mask, decoder_input_ids=target).logits
        unmasked = model(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(first, second)
    assert (unmasked[0] - first[0]).abs().max() > 1e-4
    torch.testing.assert_close(unmasked[1], first[1])


def test_the_future_is_invisible(variant):
    model = tiny_model(**variant)
    source, target = random_tokens(2, 7), random_tokens(2, 5, seed=1)
    changed = target.clone()
    changed[:, 3:] = random_tokens(2, 2, seed=9)
    with torch.no_grad():
        first = model(input_ids=source, decoder_input_ids=target).logits
        second = model(input_ids=source, decoder_input_ids=changed).logits
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert (first[:, 3:] - second[:, 3:]).abs().max() > 1e-4


def test_packed_sequences_equal_separate_ones(variant):
    """Two sentences in one row give each sentence's logits, and the batch's loss."""
    for implementation in implementations(variant):
        model = tiny_model(attn_implementation=implementation, **variant).double()
        sources, targets = (
            [random_tokens(1, 4), random_tokens(1, 6, seed=1)],
            [random_tokens(1, 5, seed=2), random_tokens(1, 3, seed=3)],
        )
        starts = [torch.cat([torch.ones(1, 1, dtype=torch.long), target[:, :-1]], dim=1) for target in targets]
        singles = [
            model(input_ids=s, decoder_input_ids=d, labels=t) for s, d, t in zip(sources, starts, targets, strict=True)
        ]
        packed = model(
            input_ids=padded(torch.cat(sources, dim=1), 2, "right"),
            attention_mask=mask_of(torch.cat(sources, dim=1), 2, "right"),
            decoder_input_ids=torch.cat(starts, dim=1),
            labels=torch.cat(targets, dim=1),
            segment_ids=torch.tensor([[1] * 4 + [2] * 6 + [0] * 2]),
            decoder_segment_ids=torch.tensor([[1] * 5 + [2] * 3]),
        )
        torch.testing.assert_close(packed.logits, torch.cat([single.logits for single in singles], dim=1))
        loss = (5 * singles[0].loss + 3 * singles[1].loss) / 8
        torch.testing.assert_close(packed.loss, loss, rtol=1e-6, atol=1e-6)


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
