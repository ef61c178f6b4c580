"""The protocol: task x method x seed -> a run record, a leaderboard with intervals, a report."""
