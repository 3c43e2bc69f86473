"""Translating text with a trained model."""
