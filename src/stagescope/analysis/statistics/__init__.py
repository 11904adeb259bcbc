"""What repeated measurements show: costs, stragglers, slow links, trends and comparisons of runs."""
