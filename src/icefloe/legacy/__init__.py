"""Legacy."""
