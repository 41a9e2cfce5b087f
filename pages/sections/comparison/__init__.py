"""The second run of the Compare page."""
