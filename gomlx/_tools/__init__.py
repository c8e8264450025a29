"""What measures and reports: bench(), and what gomlx finds on this machine."""
