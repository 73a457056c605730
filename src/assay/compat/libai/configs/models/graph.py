"""Static graphs, which are switched off: `graph.enabled = True` compiles the model."""

graph = dict(enabled=False, debug=-1)
