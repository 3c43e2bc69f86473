"""The library's own tests of its models, run on ReLUFormer once for each kind of attention: `make test-peer`.

What is skipped is listed, with the reason: by name where a file of this folder skips, and in expected_skips.py where the
library's test itself does; a skip for any other reason fails.
"""

from __future__ import annotations

import unittest

from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration, ReLUFormerModel

from .model_testers import TranslationTester
from .shared_tests import LIBRARY, ModelTests, RefusesSdpa


class ReLUFormerTests(ModelTests, LIBRARY.generation_mixin):
    """What holds for every kind of attention; a subclass says which one it is."""

    all_model_classes = (ReLUFormerModel, ReLUFormerForConditionalGeneration)
    is_encoder_decoder = True

    def setUp(self):
        self.model_tester = TranslationTester(self, **self.attention_fields)

    def test_config(self):
        fields = {"d_model": 16, "encoder_attention_heads": 2, **self.attention_fields}
        LIBRARY.configuration.ConfigTester(self, config_class=ReLUFormerConfig, **fields).run_common_tests()

    if LIBRARY.generation_missing:

        def test_generation_tester_mixin_inheritance(self):
            self.skipTest(LIBRARY.generation_missing)


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
