"""The image that installs the plugins on a node: an OCI layout in a tar archive, with one manifest per architecture."""

import datetime
import json

from archive import EXECUTABLE, Tree, gz, sha256
from crates import licences
from project import ROOT

MEDIA = "application/vnd.oci.image."
# Without a shell. The directory of the node is mounted at /host/opt/cni/bin; another one is the argument.
ENTRYPOINT = ["/cnibox", "install", "--force", "--backup", "--wait"]
DIRECTORY = "/host/opt/cni/bin"


def layout(builds, bills):
    """An archive that podman, skopeo, containerd and recent versions of docker import."""
    project = builds[0].project
    tree, manifests = Tree(), []
    for build in builds:
        manifests.append(manifest(tree, build, bills[build.arch]))
    index = {"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": manifests,
             "annotations": annotations(project)}
    name = f"{project.image}:{project.version}"
    top = blob(tree, MEDIA + "index.v1+json", to_json(index))
    top["annotations"] = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    tree.add("index.json", to_json({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [top]}))
    tree.add("oci-layout", to_json({"imageLayoutVersion": "1.0.0"}))
    return tree.tar(project.epoch, prefix="", with_root=False)


def to_json(value):
    return json.dumps(value, separators=(",", ":"))


def blob(tree, media, content):
    """Keeps it under its digest. Returns its descriptor."""
    data = content.encode() if isinstance(content, str) else content
    path = f"blobs/sha256/{sha256(data)}"
    if path not in tree.files:
        tree.add(path, data)
    return {"mediaType": media, "digest": f"sha256:{sha256(data)}", "size": len(data)}


def annotations(project):
    return {
        "org.opencontainers.image.title": project.name,
        "org.opencontainers.image.description": project.summary,
        "org.opencontainers.image.version": project.version,
        "org.opencontainers.image.licenses": project.licence,
        "org.opencontainers.image.revision": project.commit,
        "org.opencontainers.image.created": time(project),
    }


def time(project):
    return datetime.datetime.fromtimestamp(project.epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def manifest(tree, build, bill):
    """Adds the manifest of an architecture with its layer. Returns its descriptor for the index."""
    project = build.project
    files = Tree()
    files.add("cnibox", build.executable, EXECUTABLE)
    files.add("LICENSE", (ROOT / "LICENSE").read_text())
    files.add("third-party.txt", licences(build))
    files.add("cnibox.cdx.json", bill)
    uncompressed = files.tar(project.epoch, prefix="", with_root=False)
    layer = blob(tree, MEDIA + "layer.v1.tar+gzip", gz(uncompressed))
    platform = {"architecture": build.go, "os": "linux"} | ({"variant": build.variant} if build.variant else {})
    config = platform | {
        "created": time(project),
        "config": {"Entrypoint": ENTRYPOINT, "Cmd": [DIRECTORY], "WorkingDir": "/", "Labels": annotations(project)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(uncompressed)}"]},
        "history": [{"created": time(project), "created_by": "packaging/build"}],
    }
    settings = blob(tree, MEDIA + "config.v1+json", to_json(config))
    document = {"schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json", "config": settings, "layers": [layer],
                "annotations": annotations(project)}
    return blob(tree, MEDIA + "manifest.v1+json", to_json(document)) | {"platform": platform}
