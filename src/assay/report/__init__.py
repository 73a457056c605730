"""Reports made of records for people: figures."""
