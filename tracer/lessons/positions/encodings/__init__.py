"""One kind of positions a file: `Positions`, its changes of a block, and literals that describe it."""
