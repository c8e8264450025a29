"""The command gomlx, and python -m gomlx."""
import signal
import sys


def main():
    """The exit status of the command that sys.argv asks for. The program ends after it: a second Ctrl-C ends it at
    once, without Python's report of where it was."""
    try:
        from gomlx.cli import main as run  # here, so that a Ctrl-C during the import ends quietly too
        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
