"""The page: a server over `query`, and the built front end in `static/`. Needs the extra `ui`."""
