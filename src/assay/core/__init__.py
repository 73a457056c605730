"""The vocabulary of every other room: facts, events, ports, errors, formats on disk. Standard
library only."""
