"""The library's own tests of its models, run on the Vision Transformer once for each kind of attention: `make test-peer`."""

from __future__ import annotations

import unittest

from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig, ReLUFormerVisionModel

from .model_testers import VisionTester
from .shared_tests import LIBRARY, ModelTests, RefusesSdpa


class VisionTests(ModelTests):
    """What holds for every kind of attention; a subclass says which one it is."""

    all_model_classes = (ReLUFormerVisionModel, ReLUFormerForImageClassification)
    pipeline_model_mapping = {"image-classification": ReLUFormerForImageClassification}
    test_resize_embeddings = False

    def setUp(self):
        self.model_tester = VisionTester(self, **self.attention_fields)

    def test_config(self):
        fields = {"hidden_size": 16, "num_attention_heads": 2, **self.attention_fields}
        tester = LIBRARY.configuration.ConfigTester(
            self, config_class=ReLUFormerVisionConfig, has_text_modality=False, **fields
        )
        tester.run_common_tests()

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


class VisionReluTest(RefusesSdpa, VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "relu", "regularization_weight": 0.0}


class VisionSoftmaxClsTest(VisionTests, unittest.TestCase):
    attention_fields = {"attention_activation": "softmax", "attention_qk_norm": False, "pooling": "cls"}
