"""Timelines and reports as text: terminal charts, tables and Markdown."""
