"""What is made of records for people: figures."""
