"""Secrets: how they are named, where they stand, and their replacement in what is written down."""
