"""Looks at the files of packages. The first argument names the question."""

import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib


def bill(executable):
    """The fields that the schema of CycloneDX 1.5 requires, the hashes, and every crate that cargo links."""
    document = json.loads(pathlib.Path(executable + ".cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX" and document["specVersion"] == "1.5"
    assert re.fullmatch("urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    assert document["version"] >= 1
    main = document["metadata"]["component"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["metadata"]["timestamp"])
    content = pathlib.Path(executable).read_bytes()
    hashes = {entry["alg"]: entry["content"] for entry in main["hashes"]}
    assert hashes == {"SHA-256": hashlib.sha256(content).hexdigest(), "SHA-512": hashlib.sha512(content).hexdigest()}
    components = document["components"]
    for component in [main, *components]:
        assert component["type"] in ("application", "library") and component["name"] and component["purl"]
        assert component["licenses"][0]["expression"], component
    references = [component["bom-ref"] for component in components]
    assert len(set(references)) == len(references)
    known = {main["bom-ref"], *references}
    for dependency in document["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= known, dependency
    assert {dependency["ref"] for dependency in document["dependencies"]} == known
    assert {"musl", "rust-std"} <= {component["name"] for component in components}
    lock = tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
    checksums = {f"pkg:cargo/{crate['name']}@{crate['version']}": crate.get("checksum") for crate in lock}
    for component in components:
        if component["purl"].startswith("pkg:cargo/"):
            assert component["hashes"] == [{"alg": "SHA-256", "content": checksums[component["purl"]]}], component
    listed = {component["purl"] for component in components if component["scope"] == "required"}
    missing = linked_crates() - listed
    assert not missing, missing


def linked_crates():
    """The crates that `cargo tree` shows without those below a procedural macro."""
    said = subprocess.run(
        ["cargo", "tree", "--offline", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none",
         "--target", "x86_64-unknown-linux-musl", "--format", "{p}"],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = {tuple(line.split()[:2]) for line in said.splitlines() if line}
    assert len(pairs) > 10
    return {f"pkg:cargo/{name}@{version[1:]}" for name, version in pairs if name != "cnibox"}


def crates(path):
    """Prints the names of the crates in a bill of materials."""
    document = json.loads(pathlib.Path(path).read_text())
    print("\n".join(component["name"] for component in document["components"]))


def layout(path):
    """An image as the specification of OCI asks: each blob has its digest and size, no blob is left over, and each
    architecture has a layer with the executable. Prints the platforms."""
    with tarfile.open(path) as archive:
        blobs = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert json.loads(blobs.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    seen = set()

    def get(descriptor):
        name = "blobs/" + descriptor["digest"].replace(":", "/")
        content = blobs[name]
        assert len(content) == descriptor["size"] and name.endswith(hashlib.sha256(content).hexdigest())
        seen.add(name)
        return content

    top = json.loads(blobs.pop("index.json"))
    assert top["schemaVersion"] == 2
    index = json.loads(get(top["manifests"][0]))
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    for entry in index["manifests"]:
        manifest = json.loads(get(entry))
        config = json.loads(get(manifest["config"]))
        platform = entry["platform"]
        assert platform == {key: config[key] for key in platform}
        assert config["rootfs"]["type"] == "layers" and len(manifest["layers"]) == 1
        layer = subprocess.run(["gzip", "-dc"], input=get(manifest["layers"][0]), check=True, stdout=subprocess.PIPE)
        assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer.stdout).hexdigest()]
        print("/".join(filter(None, [platform["os"], platform["architecture"], platform.get("variant")])))
    assert seen == set(blobs), set(blobs) - seen


def daemonset(path, version, image):
    """Prints the command of the container; it is the entry point of the image."""
    import yaml
    documents = list(yaml.safe_load_all(pathlib.Path(path).read_text()))
    assert [document["kind"] for document in documents] == ["DaemonSet"]
    spec = documents[0]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    container, = pod["containers"]
    assert container["image"] == f"localhost/cnibox:{version}", container["image"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert mounts == {"plugins": "/host/opt/cni/bin"} and volumes == {"plugins": "/opt/cni/bin"}
    with tarfile.open(image) as archive:
        configs = [json.load(archive.extractfile(member)) for member in archive
                   if member.isfile() and archive.extractfile(member).read(16).startswith(b'{"architecture"')]
    assert configs
    for config in configs:
        assert config["config"]["Entrypoint"] == container["command"]
        assert config["config"]["Cmd"] == container["args"]
    print(" ".join(container["command"]))


def patch(path, daemonset_path):
    """A strategic merge patch of the DaemonSet: kubectl replaces `args`, and merges lists of containers and volumes by their
    names, and mounts by their paths. It gives the pod no right but that to write in one more directory. Prints the args."""
    import yaml
    pod = yaml.safe_load(pathlib.Path(path).read_text())["spec"]["template"]["spec"]
    whole = yaml.safe_load(pathlib.Path(daemonset_path).read_text())["spec"]["template"]["spec"]
    container, = pod["containers"]
    assert container["name"] == whole["containers"][0]["name"]
    assert set(pod) == {"containers", "volumes"} and set(container) == {"name", "args", "volumeMounts"}
    mount, = container["volumeMounts"]
    volume, = pod["volumes"]
    assert mount["name"] == volume["name"] and mount["mountPath"] == container["args"][1] + volume["hostPath"]["path"]
    assert volume["name"] not in {it["name"] for it in whole["volumes"]}
    assert container["args"][-1] == whole["containers"][0]["args"][-1]
    print(" ".join(container["args"]))


def recipe(path):
    """Each line of a recipe of BitBake is an assignment, `inherit`, or part of a task. Prints the body of do_install."""
    text = re.sub(r"\\\n", " ", pathlib.Path(path).read_text())
    tasks = dict(re.findall(r"^(do_[a-z_]+)\(\) \{\n(.*?)^\}\n", text, re.MULTILINE | re.DOTALL))
    outside = re.sub(r"^do_[a-z_]+\(\) \{\n.*?^\}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    assignment = r'[A-Z][A-Za-z_]*(\[[a-z0-9]+\]|(:[a-z{}$A-Z]+)*)? \+?=\+? "[^"]*"'
    for line in outside.splitlines():
        assert not line or line.startswith(("#", "inherit ")) or re.fullmatch(assignment, line), line
    assert "@" not in re.sub(r"\w@\w|@\.service|@example", "", outside), "a word is not filled in"
    print(tasks["do_install"])


def links(*roots):
    """Each relative link of a Markdown file below the directories leads to a file. Prints the number of documents."""
    documents, missing = 0, []
    for path in (path for root in roots for path in pathlib.Path(root).rglob("*")):
        if not path.is_file() or not path.name.endswith((".md", ".md.gz")):
            continue
        documents += 1
        text = (gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()).decode()
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in target and not (path.parent / target).exists():
                missing.append(f"{path}: {target}")
    assert not missing, "\n".join(missing)
    print(documents)


if __name__ == "__main__":
    {"bill": bill, "crates": crates, "layout": layout, "daemonset": daemonset, "patch": patch, "links": links,
     "recipe": recipe}[sys.argv[1]](*sys.argv[2:])
