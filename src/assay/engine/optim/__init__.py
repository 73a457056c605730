"""From losses to an update: gradients, clipping, optimizer step, groups and schedules."""
