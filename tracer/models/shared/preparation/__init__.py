"""From a photo or a text to the tensors that a model takes."""
