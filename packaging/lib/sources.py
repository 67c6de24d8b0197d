"""The archive of the sources, with all crates: it builds offline."""

import io
import json
import subprocess
import tarfile
import tempfile
import pathlib
import tomllib

from archive import FILE, Tree, xz
from project import ROOT, said_by

# Procedural macros and build scripts are compiled for the machine that builds.
BUILDER = "x86_64-unknown-linux-gnu"
VENDORED = """
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
"""


def release(project):
    """The files of the commit, and below vendor the crates."""
    tree = Tree()
    add_commit(tree)
    mode, config = tree.files.pop(".cargo/config.toml")
    tree.add(".cargo/config.toml", config + VENDORED.encode(), mode)
    needed = compiled_crates(project)
    with tempfile.TemporaryDirectory() as scratch:
        vendor = pathlib.Path(scratch) / "vendor"
        said_by("cargo", "vendor", "--quiet", "--locked", "--versioned-dirs", vendor, stderr=subprocess.DEVNULL)
        for directory in sorted(vendor.iterdir()):
            if directory.name in needed:
                add_crate(tree, directory)
            else:
                add_description(tree, directory)
    return xz(tree.tar(project.epoch, prefix=f"{project.name}-{project.version}/"))


def add_commit(tree):
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as members:
        for member in members:
            if member.issym():
                tree.symbolic_link(member.name, member.linkname)
            elif member.isfile():
                tree.add(member.name, members.extractfile(member).read(), 0o755 if member.mode & 0o100 else FILE)


def compiled_crates(project):
    """The directories below vendor of the crates for Linux, also those of the tests."""
    found = set()
    for target in [BUILDER, *(names["target"] for names in project.architectures.values())]:
        said = said_by("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target)
        found |= {f"{package['name']}-{package['version']}" for package in json.loads(said)["packages"]}
    return found


def add_crate(tree, directory):
    for path in directory.rglob("*"):
        if path.is_file():
            tree.add(f"vendor/{directory.name}/{path.relative_to(directory)}", path.read_bytes())


def add_description(tree, directory):
    """A crate of another system: cargo reads its Cargo.toml, and never compiles it. The files that it names are empty."""
    text = (directory / "Cargo.toml").read_text()
    described = tomllib.loads(text)
    paths = {described.get("lib", {}).get("path", "src/lib.rs")}
    build = described["package"].get("build")
    paths |= {build} if isinstance(build, str) else set()
    for kind in ("bin", "example", "test", "bench"):
        paths |= {target["path"] for target in described.get(kind, []) if "path" in target}
    checksum = json.loads((directory / ".cargo-checksum.json").read_text())
    place = f"vendor/{directory.name}"
    tree.add(f"{place}/Cargo.toml", text)
    tree.add(f"{place}/.cargo-checksum.json", json.dumps({"files": {}, "package": checksum["package"]}))
    for path in paths:
        tree.add(f"{place}/{path}", "")
