"""Runs over several hosts: network namespaces whose clocks differ by ten minutes and more."""
