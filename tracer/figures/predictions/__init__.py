"""Pictures of a model's answer and of its loss."""
