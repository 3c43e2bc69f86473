"""The library's own tests of its models, run on the decoder-only model once for each kind: `make test-peer`."""

from __future__ import annotations

import unittest

from reluformer import ReLUFormerDecoderConfig, ReLUFormerDecoderModel, ReLUFormerForCausalLM

from .model_testers import DecoderTester
from .shared_tests import LIBRARY, ModelTests, RefusesSdpa


class DecoderTests(ModelTests, LIBRARY.generation_mixin):
    """What holds for every kind of model; a subclass says which one it is."""

    all_model_classes = (ReLUFormerDecoderModel, ReLUFormerForCausalLM)
    pipeline_model_mapping = {"feature-extraction": ReLUFormerDecoderModel, "text-generation": ReLUFormerForCausalLM}

    def setUp(self):
        self.model_tester = DecoderTester(self, **self.attention_fields)

    def test_config(self):
        fields = {"hidden_size": 16, "num_attention_heads": 2, **self.attention_fields}
        LIBRARY.configuration.ConfigTester(self, config_class=ReLUFormerDecoderConfig, **fields).run_common_tests()

    @unittest.skip(
        "gives an additive mask of four dimensions, which no point-wise activation can take, so that all models refuse it"
    )
    def test_custom_4d_attention_mask(self):
        pass

    if LIBRARY.generation_missing:

        def test_generation_tester_mixin_inheritance(self):
            self.skipTest(LIBRARY.generation_missing)


class HasNoRope:
    """These take any model whose configuration has the field `rope_parameters`; here it is None with learned positions."""

    @unittest.skip("RoPE is what other positions of this model are")
    def test_model_rope_scaling_from_config(self):
        pass

    test_model_rope_scaling_from_config_0_linear = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_1_dynamic = test_model_rope_scaling_from_config
    test_model_rope_scaling_from_config_2_yarn = test_model_rope_scaling_from_config
    test_model_rope_with_partial_rotation = test_model_rope_scaling_from_config


class Gpt2ReluTest(RefusesSdpa, HasNoRope, DecoderTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class NormalizationFreeTest(HasNoRope, DecoderTests, unittest.TestCase):
    attention_fields = {
        "attention_activation": "softmax",
        "normalization": "none",
        "value_bias": False,
        "hidden_act": "relu",
    }


class LlamaReluTest(RefusesSdpa, DecoderTests, unittest.TestCase):
    attention_fields = {
        "attention_activation": "relu",
        "norm_type": "rms_norm",
        "position_embedding": "rotary",
        "ffn_type": "glu",
        "hidden_act": "relu",
        "tie_word_embeddings": False,
    }


class LlamaSoftmaxTest(DecoderTests, unittest.TestCase):
    attention_fields = {
        "attention_activation": "softmax",
        "norm_type": "rms_norm",
        "position_embedding": "rotary",
        "ffn_type": "dglu",
    }
