"""Statistics over repeated steps: costs, stragglers, slow links, trends and comparisons of runs."""
