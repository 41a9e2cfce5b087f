"""Training objective of a text model: its logits, the text shifted by one, the loss, and its gradient by block."""
