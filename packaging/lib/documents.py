"""Markdown in packages. A link to a file of the repository that the package lacks becomes plain text."""

import os
import pathlib
import re

LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def relinked(text, source, path, places):
    """The text of the document `source` of the repository, which is `path` in a package. `places` has the path in the package of
    each document there."""
    def link(match):
        title, target = match[1], match[2]
        if "://" in target or target.startswith("#"):
            return match[0]
        file, mark, anchor = target.partition("#")
        place = places.get(os.path.normpath(pathlib.PurePath(source).parent / file))
        if place is None:
            return title
        return f"[{title}]({os.path.relpath(place, pathlib.PurePath(path).parent)}{mark}{anchor})"
    return LINK.sub(link, text)
