"""Environments: making them, checking them, stepping them."""
