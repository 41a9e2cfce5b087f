"""Work that visitors wait for: its queue, its caches and its bounds."""
