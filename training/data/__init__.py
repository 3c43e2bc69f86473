"""Corpora, their cache, documents, encoding and batches: from text to what a model is trained on."""
