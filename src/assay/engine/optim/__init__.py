"""Losses -> gradients: add up, unscale, clip, check finite -> optimizer step; schedules, groups."""
