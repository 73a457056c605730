"""Modules of a model, and how they compute."""
