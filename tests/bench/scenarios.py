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
# Our own plugins, one after the other, as a runtime starts them that is no part of cnibox: chain.c.
CHAIN = "chain"
# cnibox once more, in a network where nothing else is reserved, or that has no rules.
FEW = "few"

RESERVATIONS = (0, 1_000, 10_000, 60_000)
# Published by others, for FEW and for the rest, and how many each of them has.
PORTS_FEW, PORTS_MANY, PORTS_EACH = 50, 5_000, 50
AT_ONCE = (1, 8, 64)
# The attachments that one GC removes, for FEW and for the rest.
GC_FEW, GC_MANY = 1, 500
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
    # words(contestant, scenario, world): what is started in place of the plugin, and its arguments.
    words: object = None
    # A call that only prepares the next one has no row.
    is_shown: bool = True


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
    # Network configurations in a list, for the runtime: plugins(contestant, scenario, world).
    plugins: object = None

    def takes(self, contestant):
        if self.contestants is not None:
            return contestant.name in self.contestants
        return contestant.name not in (*C_PROGRAMS, FEW, CHAIN)


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


def list_name(contestant, scenario):
    """Of the list, and of its network."""
    return f"bench-{scenario.name}-{contestant.name}"


def plugin_list(contestant, scenario, world):
    """What podman and Kubernetes have in a list."""
    rates = {f"{way}{what}": 8_000_000 for way in ("ingress", "egress") for what in ("Rate", "Burst")}
    return [
        {"type": "bridge", "bridge": contestant.bridge, "isGateway": True, "ipMasq": True,
         "ipam": ipam(contestant, world, "4")},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
        {"type": "bandwidth", **rates},
    ]


def bridge_list(contestant, scenario, world):
    keys = {"isGateway": True, "ipMasq": True, "macspoofchk": True, "ipam": ipam(contestant, world, "4")}
    return [{"type": "bridge", "bridge": contestant.bridge, **keys}]


def port_mappings(contestant):
    return {"portMappings": [{"hostPort": 8000 + contestant.number, "containerPort": 80, "protocol": "tcp"}]}


def runtime(*command):
    """`cnibox` for a list, or the program that starts the plugins of the list."""

    def words(contestant, scenario, world):
        if contestant.name == CHAIN:
            executables = [contestant.executable(plugin["type"]) for plugin in scenario.plugins(contestant, scenario, world)]
            return [contestant.directory.parent / CHAIN, world.list_dir(contestant, scenario), *executables]
        netns = [f"{world.netns_dir}/c1"] if command[0] != "gc" else []
        return [contestant.directory / CNIBOX, *command, list_name(contestant, scenario), *netns]

    return words


def fill(contestant, scenario, world):
    """Attachments that the cache does not know."""
    count = GC_FEW if contestant.name == FEW else GC_MANY
    directory = world.list_dir(contestant, scenario)
    return [contestant.directory.parent / CHAIN, "many", count, directory, contestant.executable("bridge")]


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
    title = "a list in one process: bridge, portmap, firewall, tuning, bandwidth"
    calls = [Call("ADD", words=runtime("add")), Call("DEL", words=runtime("del"))]
    yield Scenario("runtime", title, "bridge", calls, None, [CNIBOX, CHAIN], plugins=plugin_list)
    title = f"GC of {GC_MANY} attachments to a bridge against GC of {GC_FEW}"
    calls = [Call("ADD", words=fill, is_shown=False), Call("GC", words=runtime("gc", "--uncached"))]
    yield Scenario("gc", title, "bridge", calls, None, [CNIBOX, FEW], plugins=bridge_list)
    for count in RESERVATIONS:
        name = f"host-local-{count}"
        title = f"host-local, {count:,} reservations"
        yield Scenario(name, title, "host-local", life(), host_local(name), reservations=count)
    # Apart from the other plugins: they read every file, which changes the time of the calls after it.
    for kind, families, is_dense, what in SCALES:
        name, title = f"host-local-{kind}", f"host-local, {RESERVATIONS[-1]:,} reservations {what}"
        config = host_local(name, families)
        yield Scenario(name, title, "host-local", life(), config, [CNIBOX, FEW], RESERVATIONS[-1], is_dense)
