"""The release's number, in one place: the package, the `Server` header and `forewarn --version`."""

__version__ = "0.1.0"
