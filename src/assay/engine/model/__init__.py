"""Modules of a model, how they compute, and models of Keras."""
