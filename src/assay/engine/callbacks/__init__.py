"""Callbacks: objects with handlers for evaluation, saving, display and more.

The event bus calls handlers; a callback is an object that has some. Each uses only what a handler
of the user could use.
"""
