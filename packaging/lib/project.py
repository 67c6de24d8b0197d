"""The project as the packages see it: the manifest, the version, the time, and the executables."""

import os
import pathlib
import re
import subprocess
import tempfile
import tomllib

from documents import relinked

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    """A reason to stop, in the form `cannot <verb> <object>: <reason>`."""


def said_by(*command, **options):
    """The output of a command that has to succeed."""
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options).stdout
    except FileNotFoundError as error:
        raise Failure(f"cannot run {command[0]}: it is missing") from error
    except subprocess.CalledProcessError as error:
        raise Failure(f"cannot run {' '.join(map(str, command))}: exit status {error.returncode}") from error


class Project:
    """What is the same for all architectures."""

    def __init__(self):
        self.manifest = tomllib.loads((ROOT / "packaging/manifest.toml").read_text())
        self.version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
        self.upstream = re.search(r'"v([0-9.]+)\+cnibox', (ROOT / "src/plugin.rs").read_text())[1]
        self.plugins = sorted(link.name for link in (ROOT / "symlinks").iterdir())
        self.epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or said_by("git", "log", "-1", "--format=%ct"))
        self.commit = os.environ.get("CNIBOX_COMMIT") or said_by("git", "rev-parse", "HEAD").strip()

    def __getattr__(self, name):
        """A key of the manifest."""
        try:
            return self.__dict__["manifest"][name]
        except KeyError:
            raise AttributeError(name) from None

    def files(self, kind):
        """Path in the package, text and mode of each file that the manifest has for this kind of package."""
        places = {file["from"]: file[kind] for file in self.manifest["files"] if kind in file}
        for file in self.manifest["files"]:
            if kind in file:
                source, path = file["from"], file[kind]
                text = (ROOT / source).read_text()
                if source.endswith(".md"):
                    text = relinked(text, source, path, places)
                yield path, text, file.get("mode", 0o644)

    def placeholders(self):
        """The keys of the manifest that a distributor has to set."""
        return [key for key in ("maintainer", "homepage") if "PLACEHOLDER" in self.manifest[key]]


class Build:
    """One architecture: its names and its executable."""

    def __init__(self, project, arch, path):
        if arch not in project.architectures:
            known = ", ".join(project.architectures)
            raise Failure(f"cannot package {arch}: the manifest has {known}")
        self.project, self.arch, self.path = project, arch, pathlib.Path(path)
        names = project.architectures[arch]
        self.target, self.debian, self.go = names["target"], names["debian"], names["go"]
        self.variant = names.get("variant")
        try:
            self.executable = self.path.read_bytes()
        except OSError as error:
            raise Failure(f"cannot read {path}: {error.strerror}") from error
        check_machine(self)
        check_version(self)

    def made_with(self):
        """The lines of the file that packaging/release writes beside an executable; empty without that file."""
        info = self.path.with_name(self.path.name + ".buildinfo")
        lines = info.read_text().splitlines() if info.exists() else []
        return [tuple(line.split(" ", 1)) for line in lines if " " in line]


# e_machine and the class (1: 32 bits, 2: 64 bits), see elf(5).
MACHINES = {"x86_64": (62, 2), "aarch64": (183, 2), "armv7": (40, 1), "riscv64": (243, 2), "i686": (3, 1)}


def check_machine(build):
    head = build.executable[:20]
    found = (int.from_bytes(head[18:20], "little"), head[4]) if head[:4] == b"\x7fELF" else None
    if found != MACHINES[build.arch]:
        raise Failure(f"cannot package {build.path}: it is no executable for {build.arch}")


def check_version(build):
    """An executable of another version would be in packages with the wrong name."""
    expected = f"v{build.project.upstream}+cnibox.{build.project.version}"
    if expected.encode() not in build.executable:
        raise Failure(f"cannot package {build.path}: it is not of version {expected}")


class Texts:
    """The manuals and completions, as an executable prints them that runs on this machine."""

    def __init__(self, project, builds, executable):
        self.executable = executable or next((it.path for it in builds if runs(it.path)), None)
        if not self.executable:
            raise Failure("cannot print the manuals: no executable runs here, and there is no --texts FILE")
        with tempfile.TemporaryDirectory() as directory:
            self.print("man", "--to", directory)
            self.manuals = {page.name: page.read_text() for page in pathlib.Path(directory).iterdir()}
        self.completions = {shell: self.print("completion", shell) for shell in ("bash", "zsh", "fish")}

    def print(self, *words):
        return said_by("cnibox", *words, executable=pathlib.Path(self.executable).resolve())


def runs(path):
    """The name of the file can be any: the first argument selects the command."""
    try:
        said = subprocess.run(["cnibox", "--version"], executable=path.resolve(), stdout=subprocess.DEVNULL, check=False)
        return said.returncode == 0
    except OSError:
        return False
