"""What a person wrote: text in UTF-8, YAML in which nothing stands twice, and misspelt names."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint at the name that a person may have had in mind; where none is near, something else."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def read_text(path: Path) -> str:
    """Of a file that a person wrote."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not readable as text: it must be UTF-8") from None


class _Loader(yaml.SafeLoader):
    """Refuses what stands there twice, of which YAML would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name != "<<" and name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{name!r} stands there twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, origin: str) -> Any:
    """What a person wrote."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{origin} is not readable as YAML: {_yaml_fault(error)}") from None


def _yaml_fault(error: yaml.YAMLError) -> str:
    """What is wrong and where, in one line."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return what if mark is None else f"{what}, line {mark.line + 1}"
