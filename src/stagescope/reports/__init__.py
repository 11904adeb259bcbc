"""Timelines and reports for people: terminal charts, text tables, Markdown and notebook tables."""
