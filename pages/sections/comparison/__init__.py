"""Second run of the Compare page."""
