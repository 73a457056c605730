"""Routes of the server, one module a page."""
