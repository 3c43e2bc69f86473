"""What a model's translations are worth: evaluation, metrics, validation."""
