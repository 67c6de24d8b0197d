"""Archives for hosts without a package manager: the drop-in for the Go plugins, and the bundle for hosts offline."""

from archive import EXECUTABLE, Tree, gz, sha256
from crates import licences
from image import layout
from project import ROOT


def drop_in(build):
    """The members are those of the archive of the Go plugins, as regular files: what extracts one plugin finds it whole.
    A hard link in its place cannot be extracted alone. The licences of others are at the end of LICENSE."""
    tree = Tree()
    for name in [*build.project.plugins, build.project.name]:
        tree.add(name, build.executable, EXECUTABLE)
    tree.add("LICENSE", (ROOT / "LICENSE").read_text() + "\n" + licences(build))
    tree.add("README.md", (ROOT / "packaging/installed.md").read_text())
    return gz(tree.tar(build.project.epoch))


def air_gapped(build, bill):
    """All that a host offline needs, in one directory, with an installer that needs a shell and sha256sum only."""
    project, tree = build.project, Tree()
    tree.add("cnibox", build.executable, EXECUTABLE)
    tree.add("cnibox.cdx.json", bill)
    tree.add("third-party.txt", licences(build))
    tree.add("image.tar", layout([build], {build.arch: bill}))
    tree.add("daemonset.yaml", (ROOT / "packaging/kubernetes/daemonset.yaml").read_text())
    for path, text, mode in project.files("bundle"):
        tree.add(path, text, mode)
    sums = "".join(f"{sha256(content)}  {path}\n" for path, content in tree.contents())
    tree.add("SHA256SUMS", sums)
    tree.add("install.sh", (ROOT / "packaging/bundle/install.sh").read_text(), EXECUTABLE)
    name = f"{project.name}-{project.version}-airgap-{build.go}"
    return gz(tree.tar(project.epoch, prefix=f"{name}/"))
