"""Working folders of programs: exported as records, made from them, and kept where a dead process leaves nothing."""

from .beneath import is_there, read_text, remove_tree, root_of, write_file
from .entries import BadFolder, Entry, FolderLimits, Tree, check_path, tree_of
from .places import Place
from .reading import Digests, export, walk
from .writing import copy_tree, write_tree

__all__ = [
    "BadFolder",
    "Digests",
    "Entry",
    "FolderLimits",
    "Place",
    "Tree",
    "check_path",
    "copy_tree",
    "export",
    "is_there",
    "read_text",
    "remove_tree",
    "root_of",
    "tree_of",
    "walk",
    "write_file",
    "write_tree",
]
