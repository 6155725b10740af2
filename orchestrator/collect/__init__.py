"""The collection run: the controller that ships."""
