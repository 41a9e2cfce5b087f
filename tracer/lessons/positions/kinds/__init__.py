"""One kind of positions a file: `Positions`, what it changes of a block, and literals that say what it is."""
