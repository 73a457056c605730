"""Servers: of the page, over `query` (extra `ui`), and of exported models, in `inference`."""
