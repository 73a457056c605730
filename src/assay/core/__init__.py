"""Vocabulary of every other room: errors, facts, events, ports, quantities and secrets.

Standard library only.
"""
