"""Print the pinned requirements that `pyproject.toml` names, one a line.

`make build` feeds pip with the output, so that every pin is written down once. pip can install
dependency groups itself only from version 25.1 on, and an older one comes with Python 3.11.
"""

import argparse
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(groups: list[str]) -> list[str]:
    """Collect the requirements of `groups`.

    Parameters
    ----------
    groups : list of str
        Names of optional dependencies or dependency groups; "project" stands for the
        dependencies that every user needs.

    Returns
    -------
    list of str
        Requirement lines in the order of `groups`.

    Raises
    ------
    KeyError
        If `pyproject.toml` has no group of that name.
    """
    document = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    known = {
        "project": document["project"]["dependencies"],
        **document["project"]["optional-dependencies"],
        **document["dependency-groups"],
    }
    return [line for group in groups for line in known[group]]


def main() -> None:
    """Print the requirements of the groups named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = "project, test, examples, build, models, vision or bench"
    parser.add_argument("groups", nargs="+", help=known)
    print("\n".join(requirements(parser.parse_args().groups)))


if __name__ == "__main__":
    main()
