"""Benchmarks: named cases, each printed beside the limit that it is compared with."""

from .command_line import explain_what_is_missing

explain_what_is_missing()
