"""What a model of text is trained for: its logits, the text shifted by one, and the loss between them; and the gradient
that flows back from it, block by block."""
