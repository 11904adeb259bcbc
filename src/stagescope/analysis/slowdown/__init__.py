"""How much stragglers slow a run down, in the metrics of ByteDance's what-if analysis."""
