"""Source files of an extension, each with what it includes from beside it."""

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["read_whole"]

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.M)
ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.M)


def read_whole(file: Path, folders: Sequence[str] = (), inside: tuple[Path, ...] = ()) -> str:
    """
    Read a file, with the files that it includes in quotes in place of these lines.

    They are looked for beside it and in ``folders``; what is found in neither stays as it stands.
    A file with ``#pragma once`` is guarded by a name, since the pragma has no meaning any more.
    """
    text, name = file.read_text(errors="replace"), str(file)
    guard = "ONCE_" + re.sub(r"\W", "_", name)

    def included(found: re.Match[str]) -> str:
        places = [Path(folder) / found[1] for folder in (str(file.parent), *folders)]
        other = next((each.resolve() for each in places if each.is_file()), None)
        if other is None:
            return found[0]
        if other in (*inside, file):
            return ""
        line = text.count("\n", 0, found.start()) + 2
        return f'{read_whole(other, folders, (*inside, file))}\n#line {line} "{name}"'

    whole = f'#line 1 "{name}"\n{INCLUDE.sub(included, text)}'
    if not ONCE.search(whole):
        return whole
    return f"#ifndef {guard}\n#define {guard}\n{ONCE.sub('', whole)}\n#endif"
