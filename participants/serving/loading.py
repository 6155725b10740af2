"""Classes that people name as `module:Class`, and what is made of them. What their code raises is told as theirs."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from ..agent import Agent
from ..data import Peer
from ..options import hidden_method, wrong_option
from ..simple_agent import SimpleAgent
from .settings import ConfigError

T = TypeVar("T")
Peers = Mapping[str, Peer]
"""By role."""


def import_target(role: str, target: str) -> ModuleType:
    """The module of `module:Class`. Raises ConfigError, whatever goes wrong in code that is not ours."""
    try:
        return importlib.import_module(target.partition(":")[0])
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{role}: server {target!r} cannot be imported: {told}") from error


def find_class(role: str, target: str, base: type[T]) -> type[T]:
    """The class that is named, a subclass of `base`. Raises ConfigError."""
    attribute = target.partition(":")[2]
    found = getattr(import_target(role, target), attribute, None)
    if found is None:
        raise ConfigError(f"{role}: server {target!r} cannot be imported: it has no {attribute!r}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{role}: {target!r} is not {_article(base.__name__)}")
    return found


def takes(found: type, keyword: str) -> bool:
    """Whether the constructor of a class takes an argument, itself or by handing on what it does not name."""
    for each in found.__mro__:
        if "__init__" in vars(each):
            parameters = inspect.signature(vars(each)["__init__"]).parameters
            if keyword in parameters:
                return True
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                return False
    return False


def make_resources(role: str, target: str, found: type[T], options: Mapping[str, Any], name: str, peers: Peers) -> T:
    """As `make`; a resources server that wants peers is given them."""
    given = {"peers": peers} if takes(found, "peers") else {}
    return make(role, target, partial(found, **given), options=options, name=name)


def make_agent(
    role: str,
    target: str | None,
    model: Peer,
    resources: Peers,
    *,
    options: Mapping[str, Any],
    dialect: str | None,
    name: str = "main",
) -> Agent:
    """As `make`; `target` None for the one that ships, and `dialect` for a class that takes it. Imports."""
    found: type[Agent] = find_class(role, target, Agent) if target else SimpleAgent
    if dialect and takes(found, "dialect"):
        options = {"dialect": dialect, **options}
    called: Callable[..., Agent] = found
    return make(role, target or "the one that ships", called, model, resources, options=options, name=name)


def make(role: str, target: str, found: Callable[..., T], *given: Any, options: Mapping[str, Any], name: str) -> T:
    """One with these options. Raises ConfigError for options that it does not take, or that it refuses."""
    made = found.func if isinstance(found, partial) else found
    if isinstance(made, type) and (wrong := wrong_option(made, options)):
        raise ConfigError(f"{role}: {target} does not take these options: {wrong}")
    try:
        one = found(*given, name=name, **options)
    except TypeError as error:
        raise ConfigError(f"{role}: {target} does not take these options: {error}{_known(found)}") from error
    except Exception as error:  # The code of a user may raise anything.
        told = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{role}: {target} cannot be made with these options: {told}") from error
    if hidden := hidden_method(one):
        raise ConfigError(f"{role}: {target} sets self.{hidden}, which is a method of its base: name it otherwise")
    return one


def _known(found: Callable[..., Any]) -> str:
    """Which options there are, where the class says it."""
    made = found.func if isinstance(found, partial) else found
    names = [name for each in getattr(made, "__mro__", ()) for name in _keywords(each)]
    return f". It takes {', '.join(dict.fromkeys(names))}" if names else ""


def _keywords(each: type) -> list[str]:
    if "__init__" not in vars(each):
        return []
    parameters = inspect.signature(vars(each)["__init__"]).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in ("gate", "peers")]


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
