"""`make demo-live`: a real training that is followed, disturbed and controlled while it runs."""
