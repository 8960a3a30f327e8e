"""Hostile input and faults of the machine: each gets one sentence, bounded memory and time, and nothing is lost."""

TALLY: list[tuple[str, float, float]] = []  # kind, megabytes and seconds of every attack, for the summary
