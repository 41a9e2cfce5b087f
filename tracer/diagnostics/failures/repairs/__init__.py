"""Repairs that may do, of all kinds; `trials` says which of them do."""
