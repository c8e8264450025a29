"""What every package here uses: checks of arguments, progress bars, the machine, what notebooks show."""
