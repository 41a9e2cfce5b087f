"""Pictures of single tensors."""
