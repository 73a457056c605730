"""Training loop: the engine, its state and events, and the step that the user writes."""
