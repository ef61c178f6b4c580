"""The test bed: a GPT on one device, the same on many, and switches that break it."""
