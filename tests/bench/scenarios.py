# SPDX-License-Identifier: Apache-2.0
"""What is measured: for every scenario the configuration that each contestant gets, and the calls of one round."""

import dataclasses
import pathlib

# Contestants that are no plugins. The first two are one program: what the kernel needs for the link and its addresses,
# and that with the duties that every plugin has, too.
FLOOR = "floor"
DUTIES = "duties"
FLOORS = (FLOOR, DUTIES)
EMPTY = "empty"
C_PROGRAMS = (*FLOORS, EMPTY)
CNIBOX = "cnibox"
# cnibox once more, in a network where nothing else is reserved, or that has no rules.
FEW = "few"

RESERVATIONS = (0, 1_000, 10_000, 60_000)
# Published by others, for FEW and for the rest, and how many each of them has.
PORTS_FEW, PORTS_MANY, PORTS_EACH = 50, 5_000, 50
AT_ONCE = (1, 8, 64)
# Name, families, whether all that is reserved comes after the last address given, and that in words.
SCALES = (
    ("sparse", "4", False, "against none"),
    ("dense", "4", True, "after the last one given against none"),
    ("dual", "46", True, "in each of two families against none"),
)


@dataclasses.dataclass
class Contestant:
    """Somebody who answers CNI calls."""

    name: str
    number: int
    directory: pathlib.Path
    label: str
    # Pairs of a scenario and a verb that it turned out not to be able to do.
    skipped: set = dataclasses.field(default_factory=set)

    def executable(self, plugin):
        if self.name in C_PROGRAMS:
            return self.directory / (FLOOR if self.name in FLOORS else self.name)
        return self.directory / plugin

    @property
    def bridge(self):
        return f"bench{self.number}"


@dataclasses.dataclass
class Call:
    """One step of a round, by so many processes at once; what becomes of the result is up to drive.c."""

    verb: str
    at_once: int = 1
    result: str = "-"


@dataclasses.dataclass
class Scenario:
    name: str
    title: str
    plugin: str
    calls: list
    # config(contestant, world) is the network configuration; None if the contestant does not need any.
    config: object
    contestants: object = None
    reservations: int | None = None
    is_dense: bool = False
    # Whether others have published ports.
    ports: bool = False

    def takes(self, contestant):
        if self.contestants is not None:
            return contestant.name in self.contestants
        return contestant.name not in (*C_PROGRAMS, FEW)


def network(contestant, scenario, **keys):
    config = {"cniVersion": "1.0.0", "name": f"bench-{scenario}"} | keys
    return config


def ipam(contestant, world, families, subnet_number=0):
    number = 20 + contestant.number + subnet_number
    subnets = {"4": f"10.{number}.0.0/16", "6": f"fd00:{number}::/64"}
    defaults = {"4": "0.0.0.0/0", "6": "::/0"}
    return {
        "type": "host-local",
        "dataDir": str(world.data_dir(contestant)),
        "ranges": [[{"subnet": subnets[family]}] for family in families],
        "routes": [{"dst": defaults[family]} for family in families],
    }


def bridge(name, families="4", **keys):
    def config(contestant, world):
        return network(
            contestant,
            name,
            type="bridge",
            bridge=contestant.bridge,
            isGateway=True,
            ipam=ipam(contestant, world, families),
            **keys,
        )

    return config


def ptp(name, families, **keys):
    def config(contestant, world):
        return network(contestant, name, type="ptp", ipam=ipam(contestant, world, families, 40), **keys)

    return config


def host_local(name, families="4"):
    def config(contestant, world):
        return network(contestant, name, type="bridge", ipam=ipam(contestant, world, families, 80))

    return config


def portmap(name):
    """Chained behind a bridge that is not there: portmap looks at the result only."""

    def config(contestant, world):
        mapping = {"hostPort": 8000 + contestant.number, "containerPort": 80, "protocol": "tcp"}
        interfaces = [{"name": contestant.bridge}, {"name": "eth0", "sandbox": "/run/netns/c1"}]
        return network(
            contestant,
            name,
            type="portmap",
            capabilities={"portMappings": True},
            runtimeConfig={"portMappings": [mapping]},
            prevResult={
                "cniVersion": "1.0.0",
                "interfaces": interfaces,
                "ips": [{"address": f"10.{20 + contestant.number}.0.9/16", "interface": 1}],
            },
        )

    return config


def rules(contestant):
    return {} if contestant.name == FEW else {"ipMasq": True, "macspoofchk": True}


def life(at_once=1, check=True):
    calls = [Call("ADD", at_once, "keep"), Call("CHECK", at_once, "use"), Call("DEL", at_once, "use")]
    return calls if check else [calls[0], calls[2]]


def all_scenarios(plugin_directories):
    plugins = list(plugin_directories)
    with_floor = [*FLOORS, CNIBOX, *plugins]
    masq = {"ipMasq": True}
    yield Scenario(
        "version", "VERSION", "bridge", [Call("VERSION")], None, contestants=[EMPTY, CNIBOX, *plugins]
    )
    yield Scenario("bridge", "bridge + host-local", "bridge", life(), bridge("bridge"), with_floor)
    for count in AT_ONCE[1:]:
        name = f"bridge-{count}-at-once"
        title = f"bridge + host-local, {count} at once"
        yield Scenario(name, title, "bridge", life(count, check=False), bridge(name), with_floor)
    for name, title, keys in (
        ("bridge-dual", "bridge, dual-stack", {}),
        ("bridge-dual-masq", "bridge, dual-stack, ipMasq", masq),
    ):
        yield Scenario(name, title, "bridge", life(), bridge(name, "46", **keys))
    yield Scenario(
        "bridge-rules",
        "bridge, ipMasq and macspoofchk against neither",
        "bridge",
        life(),
        lambda contestant, world: bridge("bridge-rules", **rules(contestant))(contestant, world),
        [CNIBOX, FEW],
    )
    for name, title, keys in (
        ("veth-dual", "veth (ptp), dual-stack", {}),
        ("veth-dual-masq", "veth (ptp), dual-stack, ipMasq", masq),
    ):
        yield Scenario(name, title, "ptp", life(), ptp(name, "46", **keys))
    chained = [Call("ADD"), Call("CHECK"), Call("DEL")]
    yield Scenario("portmap", "portmap, one port", "portmap", chained, portmap("portmap"))
    title = f"portmap, one port beside {PORTS_MANY:,} against beside {PORTS_FEW}"
    config = portmap("portmap-many")
    yield Scenario("portmap-many", title, "portmap", chained, config, [CNIBOX, FEW], ports=True)
    for count in RESERVATIONS:
        name = f"host-local-{count}"
        title = f"host-local, {count:,} reservations"
        yield Scenario(name, title, "host-local", life(), host_local(name), reservations=count)
    # Apart from the other plugins: they read every file, which changes the time of the calls after it.
    for kind, families, is_dense, what in SCALES:
        name, title = f"host-local-{kind}", f"host-local, {RESERVATIONS[-1]:,} reservations {what}"
        config = host_local(name, families)
        yield Scenario(name, title, "host-local", life(), config, [CNIBOX, FEW], RESERVATIONS[-1], is_dense)
