"""Online learning when features come and go."""
