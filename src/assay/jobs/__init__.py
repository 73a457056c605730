"""Jobs: frozen configs in a queue, the devices they take, and the messages about their runs."""
