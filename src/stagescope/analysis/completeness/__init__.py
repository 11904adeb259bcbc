"""Missing data, and which pipelines and steps can be measured in spite of it."""
