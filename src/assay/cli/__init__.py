"""Command line: one file a command, imported only when the command is called."""
