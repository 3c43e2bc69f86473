"""Token batches: the budget, the cover of each epoch, and the same plan for ever."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.configuration.errors import UserError
from reluformer.training.data.token_batches import TokenBatchSampler


def realistic_lengths(count=30_000, seed=0):
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.8, 0.5, count), 2, 120).astype(int)
    target = np.clip(source * generator.lognormal(0, 0.2, count), 2, 120).astype(int)
    return source, target


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=200),
    st.integers(60, 400),
    st.integers(0, 3),
)
def test_budget_cover_and_constant_length(lengths, budget, epoch):
    source, target = map(np.array, zip(*lengths, strict=True))
    batches = TokenBatchSampler(source, target, tokens_per_batch=budget, seed=1)
    size = len(batches)
    batches.set_epoch(epoch)
    plan = list(batches)
    assert len(plan) == len(batches) == size
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    assert all(batch and len(batch) * max(source[batch].max(), target[batch].max()) <= budget for batch in plan)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(60, 200), st.integers(1, 8))
def test_an_epoch_is_a_whole_number_of_updates(lengths, budget, per_update):
    batches = TokenBatchSampler(lengths, lengths, tokens_per_batch=budget, seed=1, batches_per_update=per_update)
    plan = list(batches)
    assert len(plan) == len(batches)
    assert len(plan) % per_update == 0
    assert all(len(batch) * max(lengths[index] for index in batch) <= budget for batch in plan)
    pairs = sorted(index for batch in plan for index in batch)
    if len(pairs) == len(lengths):
        assert pairs == list(range(len(lengths)))
    else:  # single pairs, which nothing can be cut from: the first ones again
        assert {len(batch) for batch in plan} == {1}
        assert len(pairs) - len(lengths) < per_update
        assert set(pairs) == set(range(len(lengths)))


def test_little_padding_and_full_batches():
    source, target = realistic_lengths()
    budget = 4096
    plan = list(TokenBatchSampler(source, target, tokens_per_batch=budget, seed=3))
    padded = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in plan)
    assert 1 - (source.sum() + target.sum()) / padded < 0.10
    used = sum(len(batch) * max(source[batch].max(), target[batch].max()) for batch in plan)
    assert used / (budget * len(plan)) > 0.9


def test_batches_that_come_once_more_are_told_and_only_they(caplog):
    list(TokenBatchSampler([4] * 6, [4] * 6, tokens_per_batch=8, seed=0, batches_per_update=3))
    halved = list(TokenBatchSampler([4] * 8, [4] * 8, tokens_per_batch=32, seed=0, batches_per_update=2))
    assert [len(batch) for batch in halved] == [4, 4]
    assert caplog.messages == []
    batches = TokenBatchSampler([4] * 2, [4] * 2, tokens_per_batch=4, seed=0, batches_per_update=3)
    plan = list(batches)
    assert plan == [*plan[:2], plan[0]]
    (message,) = caplog.messages
    assert message.startswith("2 batches of one pair each") and "the first 1 of an epoch" in message


def test_a_pair_longer_than_the_budget_is_refused():
    with pytest.raises(UserError, match=r"pair 1 has 70 tokens.*tokens_per_batch 64"):
        TokenBatchSampler([3, 5, 4], [3, 70, 4], tokens_per_batch=64, seed=0)


# A resumed run needs the plan it began with, and a row of a study that of its first training.
GOLDEN = [
    (30_000, {"tokens_per_batch": 2_048, "seed": 3}, ["3897fbbf38f7cbb0", "181c154b7f719790"]),
    (30_000, {"tokens_per_batch": 4_096, "seed": 7, "batches_per_update": 8}, ["67b221e23201ddb9", "d101f89369397cbd"]),
    (7, {"tokens_per_batch": 120, "seed": 1, "batches_per_update": 16}, ["c11a0a59106f6ea9", "aefc4611433b2205"]),
]  # fmt: skip


@pytest.mark.parametrize(("count", "options", "expected"), GOLDEN)
def test_the_plan_of_a_seed_never_changes(count, options, expected):
    sampler = TokenBatchSampler(*realistic_lengths(count), **options)
    for epoch, golden in zip((0, 5), expected, strict=True):
        sampler.set_epoch(epoch)
        digest = hashlib.sha256()
        for batch in sampler:
            digest.update(np.asarray([len(batch), *batch], dtype=np.int64).tobytes())
        assert digest.hexdigest()[:16] == golden
