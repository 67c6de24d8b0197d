# SPDX-License-Identifier: Apache-2.0
"""The namespaces that the calls are made in: a bridge for everyone, containers, directories of reservations."""

import json
import os
import pathlib
import subprocess

from scenarios import DUTIES, FEW, FLOORS, PORTS_EACH, PORTS_FEW, PORTS_MANY, list_name, port_mappings

RUN = pathlib.Path("/run/bench")
NETNS = pathlib.Path("/run/netns")
LISTS = RUN / "net.d"
CACHE = pathlib.Path("/var/lib/cni")
CONTAINERS = 64


def tool(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class World:
    """Made once, inside of new network and mount namespaces; ends with them."""

    netns_dir = NETNS

    def __init__(self):
        tool("mount", "--make-rprivate", "/")
        tool("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
        RUN.mkdir()
        NETNS.mkdir()
        os.chdir(RUN)
        # The cache of runtimes.
        CACHE.mkdir(parents=True, exist_ok=True)
        tool("mount", "-t", "tmpfs", "tmpfs", str(CACHE))
        LISTS.mkdir()
        tool("ip", "link", "set", "lo", "up")
        for number in range(1, CONTAINERS + 1):
            path = NETNS / f"c{number}"
            path.touch()
            tool("unshare", f"--net={path}", "true")

    @staticmethod
    def data_dir(contestant):
        return RUN / "networks" / contestant.name

    def prepare_floor(self, contestant):
        """What the plugins make at their first ADD; the floor finds it."""
        address = f"10.{20 + contestant.number}.0.1"
        tool("ip", "link", "add", contestant.bridge, "type", "bridge")
        tool("ip", "address", "add", f"{address}/16", "dev", contestant.bridge)
        tool("ip", "link", "set", contestant.bridge, "up")
        if contestant.name == DUTIES:
            directory = self.data_dir(contestant)
            directory.mkdir(parents=True)
            for name, content in (("lock", ""), ("last", "10.0.0.0")):
                (directory / name).write_text(content)

    def environment(self, contestant):
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "CNI_CONTAINERID": "bench-@",
            "CNI_NETNS": f"{NETNS}/c@",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(contestant.directory),
            "NETCONFPATH": str(LISTS),
            "CAP_ARGS": json.dumps(port_mappings(contestant)),
            "CHAIN_NETNS": f"{NETNS}/c%d",
        }
        if contestant.name in FLOORS:
            network = f"10.{20 + contestant.number}"
            variables |= {
                "FLOOR_MASTER": str(index_of(contestant.bridge)),
                "FLOOR_HOST_NAME": f"{contestant.name}@",
                "FLOOR_HOST_INDEX": f"{contestant.number + 1}00@",
                "FLOOR_ADDRESS": f"{network}.1.@",
                "FLOOR_PREFIX_LENGTH": "16",
                "FLOOR_GATEWAY": f"{network}.0.1",
            }
        if contestant.name == DUTIES:
            variables["FLOOR_DUTIES"] = str(self.data_dir(contestant))
        return variables

    def netns(self, contestant, scenario):
        """Where a contestant's calls are made, if it is not here: ports are published for a whole host."""
        return NETNS / FEW if scenario.ports and contestant.name == FEW else None

    def publish(self, contestant, scenario):
        """Ports of others, who have many each."""
        words, count = [], PORTS_MANY
        netns = self.netns(contestant, scenario)
        if netns:
            netns.touch()
            tool("unshare", f"--net={netns}", "true")
            words, count = ["nsenter", f"--net={netns}"], PORTS_FEW
        config = scenario.config(contestant, self)
        for first in range(0, count, PORTS_EACH):
            ports = range(20_000 + first, 20_000 + first + PORTS_EACH)
            mappings = [{"hostPort": port, "containerPort": 80, "protocol": "tcp"} for port in ports]
            config["runtimeConfig"]["portMappings"] = mappings
            config["prevResult"]["ips"][0]["address"] = f"10.99.{first // PORTS_EACH}.9/16"
            environment = self.environment(contestant)
            environment |= {"CNI_COMMAND": "ADD", "CNI_NETNS": f"{NETNS}/c1", "CNI_CONTAINERID": f"other-{first}"}
            call = [*words, str(contestant.executable(scenario.plugin))]
            text = json.dumps(config)
            subprocess.run(call, check=True, stdout=subprocess.DEVNULL, input=text, text=True, env=environment)

    def list_dir(self, contestant, scenario):
        """Of the configurations that the plugins of a list get."""
        return RUN / "lists" / list_name(contestant, scenario)

    def write_list(self, contestant, scenario):
        """The list for cnibox, and what a runtime makes of it for each plugin."""
        name = list_name(contestant, scenario)
        plugins = scenario.plugins(contestant, scenario, self)
        names = {"cniVersion": "1.1.0", "name": name}
        (LISTS / f"{name}.conflist").write_text(json.dumps(names | {"plugins": plugins}))
        directory = self.list_dir(contestant, scenario)
        directory.mkdir(parents=True)
        for number, plugin in enumerate(plugins):
            config = names | plugin
            if config.pop("capabilities", None):
                config["runtimeConfig"] = port_mappings(contestant)
            (directory / f"{number}.json").write_text(json.dumps(config))

    def reserve(self, contestant, scenario, subnets):
        """Fills a network as the reference does, each subnet from its second address on."""
        directory = self.data_dir(contestant) / f"bench-{scenario.name}"
        directory.mkdir(parents=True)
        count = 0 if contestant.name == FEW else scenario.reservations
        for subnet_number, subnet in enumerate(subnets):
            for number in range(count):
                (directory / str(subnet[2 + number])).write_text(f"other-{number}\r\neth0")
            (directory / f"last_reserved_ip.{subnet_number}").write_text(str(subnet[1 + max(count, 1)]))


def index_of(link):
    """/sys shows the namespace that it was mounted in, which need not be ours."""
    line = subprocess.run(["ip", "-o", "link", "show", link], check=True, capture_output=True, text=True).stdout
    return int(line.split(":")[0])
