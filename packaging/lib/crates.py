"""The crates in an executable: its bill of materials in the form of CycloneDX 1.5, and their licences."""

import datetime
import functools
import json
import pathlib
import re
import tomllib
import uuid

from archive import sha256, sha512
from project import ROOT, said_by

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|unlicense|copyright|notice)", re.IGNORECASE)


class Crate:
    """A crate of cargo's graph. `is_inside` is false for those that only run in the compiler (procedural macros)."""

    def __init__(self, package, checksum, is_inside, needs):
        self.name, self.version = package["name"], package["version"]
        self.licence = re.sub(r" */ *", " OR ", package["license"])
        self.directory = pathlib.Path(package["manifest_path"]).parent
        self.checksum, self.is_inside, self.needs = checksum, is_inside, needs
        self.purl = f"pkg:cargo/{self.name}@{self.version}"


@functools.cache
def crates_of(target):
    """The crates that an executable for the target is made of, sorted, and those that the project itself names."""
    said = said_by("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target)
    metadata = json.loads(said)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {node["id"]: normal(node) for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    is_macro = {id: any("proc-macro" in it["kind"] for it in package["targets"]) for id, package in packages.items()}
    inside, seen = set(), set()
    reach(root, needs, lambda id: not is_macro[id], inside)
    reach(root, needs, lambda id: True, seen)
    checksums = {(it["name"], it["version"]): it.get("checksum") for it in
                 tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    purl = {id: f"pkg:cargo/{it['name']}@{it['version']}" for id, it in packages.items()}
    found = []
    for id in seen - {root}:
        checksum = checksums[packages[id]["name"], packages[id]["version"]]
        found.append(Crate(packages[id], checksum, id in inside, sorted(purl[it] for it in needs[id])))
    return sorted(found, key=lambda crate: (crate.name, crate.version)), sorted(purl[it] for it in needs[root])


def normal(node):
    """What a crate needs at run time, and not for its tests or its build script."""
    return [it["pkg"] for it in node["deps"] if any(kind["kind"] is None for kind in it["dep_kinds"])]


def reach(id, needs, wanted, seen):
    if id in seen or not wanted(id):
        return
    seen.add(id)
    for needed in needs[id]:
        reach(needed, needs, wanted, seen)


def runtime_libraries(build):
    """Name, version and licence of what the compiler links: its standard library and the C library."""
    made_with = [text for word, text in build.made_with() if word == "with"]
    std = next((re.match(r"rustc ([0-9.]+)", it) for it in made_with if it.startswith("rustc ")), None)
    musl = next((re.match(r"musl-dev\S* ([0-9.]+)", it) for it in made_with if it.startswith("musl-dev")), None)
    return [("rust-std", std[1] if std else None, "MIT OR Apache-2.0"), ("musl", musl[1] if musl else None, "MIT")]


def component(name, version, licence, purl, **more):
    fields = {"type": "library", "bom-ref": purl, "name": name}
    if version:
        fields["version"] = version
    return fields | {"licenses": [{"expression": licence}], "purl": purl} | more


def bill_of_materials(build):
    """The JSON document. The number of the document is made of the executable, so that it is the same each time."""
    project = build.project
    crates, direct = crates_of(build.target)
    own = f"pkg:generic/{project.name}@{project.version}?arch={build.go}"
    digest = sha256(build.executable)
    components, graph = [], [{"ref": own, "dependsOn": list(direct)}]
    for crate in crates:
        hashes = [{"alg": "SHA-256", "content": crate.checksum}]
        scope = "required" if crate.is_inside else "excluded"
        components.append(component(crate.name, crate.version, crate.licence, crate.purl, hashes=hashes, scope=scope))
        graph.append({"ref": crate.purl, "dependsOn": crate.needs})
    for name, version, licence in runtime_libraries(build):
        purl = f"pkg:generic/{name}" + (f"@{version}" if version else "")
        components.append(component(name, version, licence, purl, scope="required"))
        graph[0]["dependsOn"].append(purl)
        graph.append({"ref": purl, "dependsOn": []})
    time = datetime.datetime.fromtimestamp(project.epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    main = component(project.name, project.version, project.licence, own, type="application",
                     description=project.summary,
                     hashes=[{"alg": "SHA-256", "content": digest},
                             {"alg": "SHA-512", "content": sha512(build.executable)}],
                     properties=[{"name": f"build:{word}", "value": text} for word, text in build.made_with()])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": {"components": [{"type": "application", "name": "packaging/build", "version": project.version}]},
            "component": main,
        },
        "components": components,
        "dependencies": graph,
        # The crates in the standard library are not listed one by one.
        "compositions": [{"aggregate": "incomplete", "assemblies": [it["bom-ref"] for it in components
                                                                    if it["name"] == "rust-std"]}],
    }
    return json.dumps(document, indent=2) + "\n"


def licences(build):
    """The licences of all crates and of the libraries of the compiler. A text that several have is there once."""
    crates, _ = crates_of(build.target)
    lines = [f"Third-party software in {build.project.name} {build.project.version}", ""]
    texts = {}
    for crate in crates:
        lines.append(f"{crate.name} {crate.version}: {crate.licence}")
        for file in sorted(crate.directory.iterdir()):
            if LICENCE_FILE.match(file.name) and file.is_file():
                text = file.read_text(errors="replace").strip().replace("\r\n", "\n")
                texts.setdefault(text, []).append(f"{crate.name} ({file.name})")
    for name, version, licence in runtime_libraries(build):
        lines.append(f"{name} {version or ''}".strip() + f": {licence}")
        text = (ROOT / f"packaging/licences/{name}.txt").read_text().strip()
        texts.setdefault(text, []).append(name)
    for text, owners in texts.items():
        lines += ["", "-" * 72, ", ".join(owners), "-" * 72, "", text]
    return "\n".join(lines) + "\n"
