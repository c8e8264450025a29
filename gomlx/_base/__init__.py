"""What every room uses: checks of arguments, progress bars, the machine, what notebooks show."""
