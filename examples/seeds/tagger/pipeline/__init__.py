"""Stand-ins for the pipes that alchemy brings along."""
