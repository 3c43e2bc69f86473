"""The library's own model tests as each of our models takes them, whichever it is."""

from __future__ import annotations

import unittest

import pytest

from .library_tests import NotDownloadableError, load_library_tests

try:
    LIBRARY = load_library_tests()
except NotDownloadableError as error:
    pytest.skip(str(error), allow_module_level=True)


class ModelTests(LIBRARY.modeling.ModelTesterMixin):
    """What holds for every model; a subclass sets `model_tester`, and `attention_fields` where it is for one attention alone."""

    # our files carry no year, which the library reads as before 2023
    test_can_init_all_missing_weights_before_2023 = True
    attention_fields: dict = {}

    # The next two pass output_attentions=True to a model as it is by default. The library's models then return nothing, in
    # silence, unless they are `eager`; ours refuse.

    def test_capture_outputs_decorator(self):
        self.model_tester.attn_implementation = "eager"
        super().test_capture_outputs_decorator()

    def test_model_outputs_equivalence(self):
        self.model_tester.attn_implementation = "eager"
        super().test_model_outputs_equivalence()


class RefusesSdpa:
    """Scaled dot-product attention is softmax: its rows sum to one. Any other attention refuses it.

    The library's comparison of `eager` with `sdpa` runs all the same: it takes the default where `sdpa` is refused, which
    for point-wise attention is `fused`.
    """

    @unittest.skip("sets sdpa and wants it to be accepted; its rows sum to one, so this attention refuses it")
    def test_can_set_attention_dynamically(self):
        pass

    @unittest.skip("wants sdpa to be the default; its rows sum to one, so this attention has another default")
    def test_sdpa_can_dispatch_non_composite_models(self):
        pass
