"""Files that stagescope keeps in the user's cache directory: copies from object stores, and stored runs."""
