"""Translation models as ONNX graphs, and their use with onnxruntime."""
