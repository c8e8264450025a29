# Made by tests/make_stub.py from the extension's own signatures.
from gomlx.metal import *
