"""Stores as released versions wrote them; each must load, or be refused by name, for ever."""
