"""What a person looks at: the terminal chart, the tables of figures, the packaged viewer."""
