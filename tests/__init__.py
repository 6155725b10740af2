"""The tests; the folders mirror those of the packages that they test."""

from bench.command_line import explain_what_is_missing

explain_what_is_missing()
