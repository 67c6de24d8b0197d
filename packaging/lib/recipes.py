"""The recipes by which distributions build the archive of the sources: packaging/recipes with its words in @ filled in."""

import hashlib
import re

from archive import FILE, Tree, gz, sha256, sha512
from project import ROOT, Failure

RECIPES = ROOT / "packaging/recipes"


def filled_in(project, source):
    """Path, text and mode of each recipe. `source` is the archive that they name with its sums."""
    licence = (ROOT / "LICENSE").read_bytes()
    features = (ROOT / "packaging/presets/full").read_text().split()
    modules = (RECIPES / "initramfs/modules").read_text().splitlines()
    words = {
        "NAME": project.name,
        "VERSION": project.version,
        "UPSTREAM": project.upstream,
        "SUMMARY": project.summary,
        "LICENCE": project.licence,
        "MAINTAINER": project.maintainer,
        "HOMEPAGE": project.homepage,
        "SHA256": sha256(source),
        "SHA512": sha512(source),
        "LICENCE_SHA256": sha256(licence),
        "LICENCE_MD5": hashlib.md5(licence).hexdigest(),
        "FEATURES": ",".join(features),
        "NIX_FEATURES": " ".join(f'"{feature}"' for feature in features),
        "MODULES": " ".join(line for line in modules if not line.startswith("#")),
    }
    for path in sorted(RECIPES.rglob("*")):
        if path.is_file() and path.name != "modules":
            name = str(path.relative_to(RECIPES)).replace("VERSION", project.version)
            yield name, fill_in(path, words), 0o755 if path.stat().st_mode & 0o100 else FILE


def fill_in(path, words):
    def word(match):
        if match[1] not in words:
            raise Failure(f"cannot fill in {path}: there is no @{match[1]}@")
        return words[match[1]]
    return re.sub("@([A-Z0-9_]+)@", word, path.read_text())


def archive(project, source):
    tree = Tree()
    for path, text, mode in filled_in(project, source):
        tree.add(path, text, mode)
    return gz(tree.tar(project.epoch, prefix=f"{project.name}-{project.version}-recipes/"))
