"""Pictures of attention, masks and positions."""
