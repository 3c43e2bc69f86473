"""The library's own tests of its models, run on the Vision Transformer once for each kind of attention: `make test-peer`."""

from __future__ import annotations

import unittest

import pytest

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig, ReLUFormerVisionModel

from .library_tests import NotDownloadableError, load_library_tests
from .vision_model_tester import ReLUFormerVisionModelTester

try:
    LIBRARY = load_library_tests()
except NotDownloadableError as error:
    pytest.skip(str(error), allow_module_level=True)


class VisionTests(LIBRARY.modeling.ModelTesterMixin):
    """What holds for every kind of attention; a subclass says which one it is."""

    all_model_classes = (ReLUFormerVisionModel, ReLUFormerForImageClassification)
    pipeline_model_mapping = {"image-classification": ReLUFormerForImageClassification}
    test_resize_embeddings = False
    # our files carry no year, which the library reads as before 2023
    test_can_init_all_missing_weights_before_2023 = True
    attention_fields: dict = {}

    def setUp(self):
        self.model_tester = ReLUFormerVisionModelTester(self, **self.attention_fields)

    def test_config(self):
        fields = {"hidden_size": 16, "num_attention_heads": 2, **self.attention_fields}
        tester = LIBRARY.configuration.ConfigTester(
            self, config_class=ReLUFormerVisionConfig, has_text_modality=False, **fields
        )
        tester.run_common_tests()

    # As in test_library_mixins.py: these pass output_attentions=True to a model as it is by default.

    def test_capture_outputs_decorator(self):
        self.model_tester.attn_implementation = "eager"
        super().test_capture_outputs_decorator()

    def test_model_outputs_equivalence(self):
        self.model_tester.attn_implementation = "eager"
        super().test_model_outputs_equivalence()

    def test_model_get_set_embeddings(self):
        """As ViT's own test: the embeddings are those of patches, and there is no output layer that is one."""
        config, _ = self.model_tester.prepare_config_and_inputs_for_common()
        for model_class in self.all_model_classes:
            model = model_class(config)
            self.assertIs(model.get_input_embeddings(), model.base_model.embeddings.patch_embeddings)
            self.assertIsNone(model.get_output_embeddings())

    @unittest.skip("Pictures have no embeddings of tokens")
    def test_inputs_embeds(self):
        pass


class RefusesSdpa:
    """See `RefusesSdpa` of test_library_mixins.py."""

    @unittest.skip("sets sdpa and wants it to be accepted; its rows sum to one, so this attention refuses it")
    def test_can_set_attention_dynamically(self):
        pass

    @unittest.skip("wants sdpa to be the default; its rows sum to one, so this attention has another default")
    def test_sdpa_can_dispatch_non_composite_models(self):
        pass


class VisionReluTest(RefusesSdpa, VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class VisionSoftmaxClsTest(VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "softmax", "attention_qk_norm": False, "pooling": "cls"}
