"""Vocabulary of every other room: errors, events, ports and formats on disk.

Standard library only.
"""
