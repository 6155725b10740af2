"""Every schedule of writers, pruners and importers at one store."""
