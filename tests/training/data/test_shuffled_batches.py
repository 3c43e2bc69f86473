"""Every row once an epoch, whole updates, and no batch that accelerate would fill up."""

import itertools

import pytest

from reluformer.configuration.errors import UserError
from reluformer.training.data.shuffled_batches import ShuffledBatches


@pytest.mark.parametrize(("batch_size", "batches_per_update"), [*itertools.product((1, 2, 5, 8), (1, 2, 3, 4))])
def test_an_epoch_has_each_row_once_in_whole_updates(batch_size, batches_per_update):
    for rows in range(batches_per_update, 4 * batch_size * batches_per_update + 3):
        batches = ShuffledBatches(rows, batch_size, 0, batches_per_update)
        found = list(batches)
        assert sorted(itertools.chain(*found)) == list(range(rows))
        assert len(found) == len(batches)
        assert len(found) % batches_per_update == 0
        assert all(1 <= len(batch) <= max(batch_size, 2 if batches_per_update > 1 else 1) for batch in found)
        updates = len(found) // batches_per_update
        assert updates <= -(-rows // (batch_size * batches_per_update)), "an update more than the rows need"


def test_the_order_follows_from_seed_and_epoch():
    batches = ShuffledBatches(20, 3, 0)
    first = list(batches)
    assert list(batches) == first
    for epoch in (1, 300):  # 300 is a multiple of what an epoch might be taken modulo
        batches.set_epoch(epoch)
        assert list(batches) != first
    assert list(ShuffledBatches(20, 3, 1)) != first


def test_accelerate_finds_no_batch_size_to_fill_a_batch_to():
    assert not hasattr(ShuffledBatches(20, 3, 0), "batch_size")


def test_fewer_rows_than_an_update_has_batches_are_refused():
    with pytest.raises(UserError, match="3 training rows are fewer than the 4 batches of an update"):
        ShuffledBatches(3, 8, 0, 4)
