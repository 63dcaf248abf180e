"""Finds the planner's data files: the package ``afd.configs``, whose source is ``configs/``."""

from __future__ import annotations

import importlib
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from afd.plan.errors import PlanError, UnknownNameError


def data_root() -> Traversable:
    """The folder that holds ``hardware/`` and ``models/``.

    A checkout has it as ``configs/`` beside its ``afd/``, an installed product as ``afd.configs``.
    """
    checkout = Path(__file__).resolve().parents[2] / "configs"
    if (checkout / "hardware").is_dir():
        return checkout
    try:
        root = files(importlib.import_module("afd.configs"))
        if root.joinpath("hardware").is_dir():
            return root
    except ModuleNotFoundError:
        pass
    raise PlanError("the data folder configs/hardware is missing; reinstall the package")


def names(folder: str) -> list[str]:
    """The names of the shipped files in ``folder``, sorted."""
    entries = data_root().joinpath(folder).iterdir()
    return sorted(e.name[: -len(".toml")] for e in entries if e.name.endswith(".toml"))


def read_toml(path: Path) -> dict[str, Any]:
    """One TOML file of the user's; a syntax error names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: is not TOML: {error}") from error


def load(folder: str, kind: str, name: str) -> dict[str, Any]:
    """A shipped file by name, or the user's own file by path (``….toml``)."""
    if name.endswith(".toml") or Path(name).is_file():
        return read_toml(Path(name))
    known = names(folder)
    if name not in known:
        raise UnknownNameError(kind, name, known + (["cpu"] if folder == "hardware" else []))
    text = data_root().joinpath(folder, f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def take(table: dict[str, Any], key: str, where: str) -> Any:
    """``table[key]``, or an error that names the missing field."""
    if key not in table:
        raise PlanError(f"{where}: field {key!r} is missing")
    return table[key]
