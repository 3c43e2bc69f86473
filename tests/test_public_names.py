"""What `import reluformer` offers, loaded when it is asked for."""

import pytest

import reluformer


def test_every_public_name_can_be_imported():
    for name in reluformer.__all__:
        assert getattr(reluformer, name).__name__ == name
    assert {*reluformer.__all__} <= {*dir(reluformer)}
    with pytest.raises(AttributeError, match="module 'reluformer' has no attribute 'ReLUFormer'"):
        reluformer.ReLUFormer  # noqa: B018
