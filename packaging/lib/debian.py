"""The Debian package: an ar archive of two tar archives, see deb(5). No tool of Debian is needed."""

import email.utils
import hashlib
import time

from archive import EXECUTABLE, Tree, gz, xz
from crates import licences
from project import ROOT

DOCUMENTS = "usr/share/doc/cnibox"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/cnibox",
    "zsh": "usr/share/zsh/vendor-completions/_cnibox",
    "fish": "usr/share/fish/vendor_completions.d/cnibox.fish",
}


def package(build, texts, bill):
    tree = data(build, texts, bill)
    epoch = build.project.epoch
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", xz(control(build, tree).tar(epoch))),
        ("data.tar.xz", xz(tree.tar(epoch))),
    ]
    return ar(members, epoch)


def ar(members, epoch):
    out = b"!<arch>\n"
    for name, content in members:
        out += f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def data(build, texts, bill):
    """The plugins are hard links, which containers see that have only their directory. The command and netavark's driver are
    links there."""
    project, tree = build.project, Tree()
    directory = project.debian["plugins"]
    first = min(project.plugins)
    tree.add(f"{directory}/{first}", build.executable, EXECUTABLE)
    for name in sorted([*project.plugins, project.name]):
        if name != first:
            tree.hard_link(f"{directory}/{name}", f"{directory}/{first}")
    tree.symbolic_link(f"usr/bin/{project.name}", f"../lib/cni/{project.name}")
    tree.symbolic_link(f"usr/libexec/netavark/{project.name}", f"../../lib/cni/{project.name}")
    for path, text, mode in project.files("deb"):
        if ".md" not in path:
            text = text.replace("/opt/cni/bin", f"/{directory}")
        tree.add(path, gz(text.encode(), 9) if path.endswith(".gz") else text, mode)
    for name, text in texts.manuals.items():
        tree.add(f"usr/share/man/man8/{name}.gz", gz(text.encode(), 9))
    for shell, path in COMPLETIONS.items():
        tree.add(path, texts.completions[shell])
    tree.add(f"{DOCUMENTS}/copyright", copyright_file(project))
    tree.add(f"{DOCUMENTS}/changelog.gz", gz(changelog(project).encode(), 9))
    tree.add(f"{DOCUMENTS}/third-party.txt.gz", gz(licences(build).encode(), 9))
    tree.add(f"{DOCUMENTS}/cnibox.cdx.json.gz", gz(bill.encode(), 9))
    overrides = (ROOT / "packaging/debian/lintian-overrides").read_text()
    tree.add("usr/share/lintian/overrides/cnibox", overrides)
    return tree


def control(build, tree):
    control = Tree()
    control.add("control", fields(build, tree))
    sums = [f"{hashlib.md5(content).hexdigest()}  {path}\n" for path, content in tree.contents()]
    control.add("md5sums", "".join(sums))
    for script in ("postinst", "prerm", "postrm"):
        text = (ROOT / f"packaging/debian/{script}").read_text()
        control.add(script, text.replace("UNITS", " ".join(build.project.debian["units"])), EXECUTABLE)
    return control


def fields(build, tree):
    project = build.project
    debian = project.debian
    description = "".join(f" {line or '.'}\n" for line in project.description.splitlines())
    return (
        f"Package: {project.name}\n"
        f"Version: {project.version}\n"
        f"Architecture: {build.debian}\n"
        f"Maintainer: {project.maintainer}\n"
        f"Installed-Size: {-(-tree.size() // 1024)}\n"
        f"Provides: {', '.join(debian['provides']).replace('UPSTREAM', project.upstream)}\n"
        f"Conflicts: {', '.join(debian['conflicts'])}\n"
        f"Replaces: {', '.join(debian['replaces'])}\n"
        f"Section: {debian['section']}\n"
        "Priority: optional\n"
        "Multi-Arch: foreign\n"
        f"Homepage: {project.homepage}\n"
        f"Description: {project.summary}\n{description}"
    )


def copyright_file(project):
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        f"Upstream-Name: {project.name}\n"
        f"Source: {project.homepage}\n"
        "Comment: The executable contains crates and libraries of others.\n"
        " third-party.txt.gz in this directory has them with their licences.\n\n"
        "Files: *\n"
        f"Copyright: {time.gmtime(project.epoch).tm_year} the {project.name} developers\n"
        "License: Apache-2.0\n"
        " The license is in /usr/share/common-licenses/Apache-2.0.\n"
    )


def changelog(project):
    return (
        f"{project.name} ({project.version}) unstable; urgency=medium\n\n"
        f"  * Version {project.version}. The changes are in releases.md.gz.\n\n"
        f" -- {project.maintainer}  {email.utils.formatdate(project.epoch)}\n"
    )
