"""Where the project's folders are."""
import os

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
GOLDEN = os.path.join(TESTS, "golden")
