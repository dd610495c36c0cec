"""The version, known also where the package is not installed."""

VERSION = "0.1.0"
