# Errors, as the user of podman reads them: the complete line.

# says ERROR COMMAND...: podman fails, and this is the last line that it prints. In ERROR, `*` is any text.
says() {
    local line
    not "${@:2}" >/dev/null 2>/tmp/error
    line=$(tail -n 1 /tmp/error)
    echo "it says: $line"
    # shellcheck disable=SC2053
    [[ $line == $1 ]]
}

# refuses_network REASON OPTION...
refuses_network() {
    says "Error: plugin /usr/libexec/netavark/cnibox failed: netavark: cannot create network web: $1" \
        podman network create --driver cnibox "${@:2}" web
}

# refuses_container REASON OPTION...
refuses_container() {
    says "Error: netavark: plugin \"cnibox\" failed: exit code 1, message: $1" podman run --rm --name refused "${@:2}" "$image" /bin/sleep 1
}

test_a_network_that_cannot_be_made_says_why() {
    local options='network, type, parent, mode, mtu, vlan, isolate, metric, plugins, dns and PLUGIN.KEY'
    cnibox networks create --subnet 10.70.0.0/24 mynet
    refuses_network "option nonsense=1: unknown: known are $options" --opt nonsense=1
    refuses_network "option vlan=7: type macvlan does not have it" --opt type=macvlan --opt vlan=7
    refuses_network 'option type=other: not one of bridge, veth, ptp, macvlan, ipvlan, vlan' --opt type=other
    refuses_network 'option mtu=large: not a number' --opt mtu=large
    refuses_network 'option isolate=perhaps: not true, false or strict' --opt isolate=perhaps
    refuses_network 'option other.key: the network has no plugin other' --opt other.key=1
    refuses_network 'a network on a link of the host needs a subnet' --opt type=ipvlan
    refuses_network 'a vlan needs the options parent=LINK and vlan=ID' --opt type=vlan --opt parent=lo
    refuses_network 'subnet 10.70.0.0/25 overlaps with 10.70.0.0/24 of network mynet: /etc/cni/net.d/mynet.conflist' --subnet 10.70.0.0/25
    refuses_network 'invalid range set 0: RangeStart 10.52.0.1 not in network 10.51.0.0/24' --subnet 10.51.0.0/24 --ip-range 10.52.0.0/25
    refuses_network 'option dns=other: not an IP address' --opt dns=other
    says "Error: plugin /usr/libexec/netavark/cnibox failed: netavark: cannot read the network: network_dns_servers: invalid IP address: other" \
        podman network create --driver cnibox --dns other web
    refuses_network 'there is no plugin "nothing"' --opt plugins=nothing
    refuses_network 'portmap has no key nonsense' --opt portmap.nonsense=1
    refuses_network '--route 10.99.0.0/24,10.6.0.1: 10.6.0.1 is in no subnet of it' --route 10.99.0.0/24,10.6.0.1
    [[ $(podman network ls --format '{{.Name}}') == podman ]]
    podman network create --driver cnibox --subnet 10.53.0.0/24 other
    podman network create --subnet 10.54.0.0/24 theirs
    refuses_network 'subnet 10.53.0.0/25 overlaps with 10.53.0.0/24 of network other' --subnet 10.53.0.0/25
    refuses_network 'subnet 10.54.0.0/16 overlaps with 10.54.0.0/24 of network theirs' --subnet 10.54.0.0/16
}

test_a_network_of_a_file_that_cannot_be_used_says_why() {
    cnibox networks create --subnet 10.70.0.0/24 mynet
    refuses_network 'no net configuration with name "missing" in /etc/cni/net.d' --opt network=missing
    refuses_network '--internal: the file of network mynet decides that' --opt network=mynet --internal
    refuses_network '--subnet: the file of network mynet decides that' --opt network=mynet --subnet 10.71.0.0/24
    refuses_network '--ipv6: the file of network mynet decides that' --opt network=mynet --ipv6
    refuses_network 'option mtu: not one of network, dns, metric, the options beside network=NAME' --opt network=mynet --opt mtu=9000
    podman network create --driver cnibox --opt network=mynet web
    rm /etc/cni/net.d/mynet.conflist
    refuses_container 'no net configuration* /etc/cni/net.d' --network web
}

test_a_container_that_cannot_be_connected_says_why() {
    local bridge='plugin type="bridge" name="web" failed (add): failed to allocate'
    podman network create --driver cnibox --subnet 10.50.0.0/29 web
    podman network create --driver cnibox --opt type=macvlan --opt parent=missing --subnet 10.52.0.0/24 lan
    web c1 --network web:ip=10.50.0.3 -p 8080:80
    refuses_container 'cannot give address 10.51.0.7: network web has 10.50.0.0/29' --network web:ip=10.51.0.7
    refuses_container "$bridge for range 0: requested IP address 10.50.0.3 is not available in range set 10.50.0.1-10.50.0.6: it is taken by $(podman inspect --format '{{.Id}}' c1)" \
        --network web:ip=10.50.0.3
    refuses_container "$bridge for range 0: requested ip 10.50.0.1 is subnet's gateway" --network web:ip=10.50.0.1
    refuses_container 'plugin type="macvlan" name="lan" failed (add): Link not found: master missing' --network lan
    says 'Error: cannot listen on the TCP port: listen tcp4 :8080: bind: address already in use' \
        podman run --name c2 --network web -p 8080:80 "$image" /bin/sleep 1
    podman rm c2
    for name in c2 c3 c4 c5; do web "$name" --network web; done
    refuses_container "$bridge for range 0: no IP addresses available in range set: 10.50.0.1-10.50.0.6" --network web
    # Nothing is left of the containers that were refused.
    [[ $(cnibox attachments --json | grep -c containerID) == 5 ]]
    podman rm --force --time 0 --all
    nothing_is_left
}
