"""How often a report has a false claim."""

REPORT_RATE = 1e-3
"""In one of a thousand runs without any difference, something is claimed."""

FAMILIES = 5
"""Stragglers, changing ranks, trends, outlier steps, and replicas that are last share that rate equally."""

FAMILY_RATE = REPORT_RATE / FAMILIES

LATE_RATE = REPORT_RATE / 10
"""For late ranks, whose test has to hold where a few iterations have very different pauses, too."""

LEAST_COST_FRACTION = 0.005
"""What costs a smaller part of the iteration than this is not a finding."""
