"""The library's own tests of its models, run on ReLUFormer once for each kind of attention: `make test-peer`.

What is skipped is listed here, with the reason: by name where this file skips, and in expected_skips.py where the library's
test itself does; a skip for any other reason fails.
"""

from __future__ import annotations

import unittest

import pytest

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration, ReLUFormerModel

from .library_tests import NotDownloadableError, load_library_tests
from .model_tester import ReLUFormerModelTester

try:
    LIBRARY = load_library_tests()
except NotDownloadableError as error:
    pytest.skip(str(error), allow_module_level=True)


class ReLUFormerTests(LIBRARY.modeling.ModelTesterMixin, LIBRARY.generation_mixin):
    """What holds for every kind of attention; a subclass says which one it is."""

    all_model_classes = (ReLUFormerModel, ReLUFormerForConditionalGeneration)
    is_encoder_decoder = True
    # our files carry no year, which the library reads as before 2023
    test_can_init_all_missing_weights_before_2023 = True
    attention_fields: dict = {}

    def setUp(self):
        self.model_tester = ReLUFormerModelTester(self, **self.attention_fields)

    def test_config(self):
        fields = {"d_model": 16, "encoder_attention_heads": 2, **self.attention_fields}
        LIBRARY.configuration.ConfigTester(self, config_class=ReLUFormerConfig, **fields).run_common_tests()

    # The next two pass output_attentions=True to a model as it is by default. The library's models then return nothing, in
    # silence, unless they are `eager`; this one refuses.

    def test_capture_outputs_decorator(self):
        self.model_tester.attn_implementation = "eager"
        super().test_capture_outputs_decorator()

    def test_model_outputs_equivalence(self):
        self.model_tester.attn_implementation = "eager"
        super().test_model_outputs_equivalence()

    @unittest.skip("wants a plan for the head, which a sharded embedding needs; this plan leaves the embedding whole")
    def test_tied_head_has_a_tp_plan_entry(self):
        pass

    if LIBRARY.generation_missing:

        def test_generation_tester_mixin_inheritance(self):
            self.skipTest(LIBRARY.generation_missing)


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


class ReluTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu"}


class ReluLengthScalingTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "attention_scaling": "length"}


class RelaTest(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {
        "attention_activation": "relu",
        "attention_scaling": "none",
        "attention_output_norm": "gated_rms",
    }


class Entmax15Test(RefusesSdpa, ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "entmax15"}


class SoftmaxTest(ReLUFormerTests, unittest.TestCase):
    attention_fields = {"attention_activation": "softmax"}
