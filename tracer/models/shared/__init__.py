"""What our models share: the block, inputs and results, weights from files, text written token by token."""
