# Networks that netavark does not have, through podman: on a LAN outside of the node, and of a third party's plugin.

# A LAN: link `lan` of the node, and behind it a host with a web server. The host is 10.60.0.1, fd60::1.
make_lan() {
    ip netns add lan
    ip link add lan type veth peer name eth0 netns lan
    ip link set lan up
    ip -n lan link set lo up
    ip -n lan address add 10.60.0.1/24 dev eth0
    ip -n lan address add fd60::1/64 dev eth0 nodad
    ip -n lan link set eth0 up
    ip netns exec lan busybox httpd -p 80 -h /tmp/image/www
}

# on_lan COMMAND...: runs it on that host.
on_lan() {
    ip netns exec lan "$@"
}

# needs_link TYPE: the test is not run on a kernel without this type of link.
needs_link() {
    ip link add lacking link lan type "$@" && ip link delete lacking && return
    echo "the kernel has no $1"
    exit 77
}

# The container and the host of the LAN reach each other.
reaches_lan() {
    # In an `if` nothing ends at the first failure.
    [[ $(podman exec "$1" wget -qO- "http://$2/") == hello ]] || return 1
    [[ $(on_lan busybox wget -qO- "http://$(address_of "$1" web)/") == hello ]]
}

test_a_macvlan_is_on_the_lan() {
    make_lan
    podman network create --driver cnibox --opt type=macvlan --opt parent=lan --opt mode=bridge --subnet 10.60.0.0/24 --subnet fd60::/64 web
    web c1 --network web:ip=10.60.0.20
    reaches_lan c1 10.60.0.1
    reaches_lan c1 '[fd60::1]'
    # Of the same network, a second container.
    web c2 --network web
    [[ $(podman exec c2 wget -qO- http://10.60.0.20/) == hello ]]
    podman restart --time 0 c1
    eventually reaches_lan c1 10.60.0.1
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

test_an_ipvlan_is_on_the_lan() {
    make_lan
    needs_link ipvlan
    podman network create --driver cnibox --opt type=ipvlan --opt parent=lan --subnet 10.60.0.0/24 web
    web c1 --network web:ip=10.60.0.20
    reaches_lan c1 10.60.0.1
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_vlan_is_on_the_lan() {
    make_lan
    needs_link vlan id 9
    on_lan ip link add link eth0 name tagged type vlan id 7
    on_lan ip address add 10.61.0.1/24 dev tagged
    on_lan ip link set tagged up
    podman network create --driver cnibox --opt type=vlan --opt parent=lan --opt vlan=7 --subnet 10.61.0.0/24 web
    web c1 --network web:ip=10.61.0.20
    reaches_lan c1 10.61.0.1
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_ptp_is_routed_and_publishes() {
    make_lan
    ip address add 10.60.0.2/24 dev lan
    podman network create --driver cnibox --opt type=ptp --subnet 10.62.0.0/24 web
    web c1 --network web -p 8080:80
    serves "$(address_of c1 web)" 127.0.0.1:8080
    # The LAN has no route to the container: what leaves is masqueraded.
    [[ $(podman exec c1 wget -qO- http://10.60.0.1/) == hello ]]
    [[ $(on_lan busybox wget -qO- http://10.60.0.2:8080/) == hello ]]
    podman rm --force --time 0 c1
    nothing_is_left
}

# has_lease NAME: the server leased the address that podman shows.
has_lease() {
    grep -q " $(address_of "$1" web) " /run/leases
}

test_a_macvlan_has_an_address_of_the_dhcp_server() {
    make_lan
    on_lan dnsmasq --no-daemon --port 0 --interface eth0 --user=root \
        --dhcp-range 10.60.0.100,10.60.0.120,120 --dhcp-option=option:router,10.60.0.1 \
        --dhcp-leasefile=/run/leases --pid-file= --conf-file=/dev/null --no-ping >/run/dnsmasq.log 2>&1 &
    cnibox dhcp daemon &
    eventually test -S /run/cni/dhcp.sock
    podman network create --driver cnibox --opt type=macvlan --opt parent=lan --ipam-driver dhcp web
    web c1 --network web
    [[ $(address_of c1 web) == 10.60.0.1[0-2]* ]]
    has_lease c1
    reaches_lan c1 10.60.0.1
    podman restart --time 0 c1
    eventually reaches_lan c1 10.60.0.1
    podman rm --force --time 0 c1
    [[ -z $(cnibox dhcp leases | tail -n +2) ]]
    eventually test ! -s /run/leases
    nothing_is_left
}

# A plugin of a third party, as it may be chained: it notes each call with the container's name, and passes on the result.
make_their_plugin() {
    mkdir -p /opt/cni/bin
    cat >/opt/cni/bin/theirs <<-'SH'
	#!/bin/sh
	input=$(cat)
	echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS" >>/run/theirs
	case $CNI_COMMAND in
	ADD)
	    ip netns exec "$(basename "$CNI_NETNS")" ip link set "$CNI_IFNAME" alias theirs
	    echo "$input" | tr -d '\n' | sed 's/.*"prevResult": *//; s/}$//' ;;
	VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
	esac
	SH
    chmod +x /opt/cni/bin/theirs
}

# network_of NAME IPAM: a file for a bridge, without the capability `ips`, and podman's network for it.
network_of() {
    mkdir -p /etc/cni/net.d
    cat >"/etc/cni/net.d/$1.conflist" <<-JSON
	{"cniVersion": "1.0.0", "name": "$1", "plugins": [
	    {"type": "bridge", "bridge": "br$1", "isGateway": true, "ipMasq": true, "ipam": $2},
	    {"type": "portmap", "capabilities": {"portMappings": true}}]}
	JSON
    podman network create --driver cnibox --opt "network=$1" "$1"
}

test_a_network_of_a_file_is_reloaded_with_its_addresses() {
    local name address
    network_of dual '{"type": "host-local", "ranges": [[{"subnet": "10.70.0.0/24"}], [{"subnet": "fd70::/64"}]]}'
    network_of fixed '{"type": "static", "addresses": [{"address": "10.71.0.5/24", "gateway": "10.71.0.1"}, {"address": "fd71::5/64"}]}'
    for name in dual fixed; do
        web c1 --network "$name" -p 8080:80
        address=$(address_of c1 "$name")
        nft flush ruleset
        podman network reload c1
        serves 127.0.0.1:8080 "$address"
        [[ $(address_of c1 "$name") == "$address" ]]
        serves "[$(podman inspect --format "{{.NetworkSettings.Networks.$name.GlobalIPv6Address}}" c1)]"
        podman rm --force --time 0 c1
    done
    [[ $address == 10.71.0.5 ]]
    web c1 --network fixed:ip=10.71.0.5
    podman rm --force --time 0 c1
    web c1 --network dual:ip=10.70.0.77,ip=fd70::77
    serves 10.70.0.77 '[fd70::77]'
    podman rm --force --time 0 c1
    not podman run --rm --network fixed:ip=10.71.0.6 "$image" /bin/sh -c : 2>/tmp/error
    grep 'cannot give address 10.71.0.6: network fixed has 10.71.0.5/24, fd71::5/64' /tmp/error
    nothing_is_left
}

# Executables on CNI_PATH that have the names of our plugins, and note their calls.
make_other_plugins() {
    local name
    mkdir -p /opt/cni/bin
    for name in bridge host-local portmap firewall tuning; do
        printf '#!/bin/sh\necho "$0 $CNI_COMMAND" >>/run/others\nexit 1\n' >"/opt/cni/bin/$name"
        chmod +x "/opt/cni/bin/$name"
    done
}

test_plugins_of_another_vendor_are_not_called_for_a_network_of_podman() {
    local container id
    make_other_plugins
    podman network create --driver cnibox web
    for container in c1 c2 c3; do web "$container" --network web -p "808${container#c}:80"; done
    id=$(podman inspect --format '{{.Id}}' c1)
    cnibox check web --container-id "$id" "$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' c1)"
    podman network reload c1
    serves 127.0.0.1:8081
    # What one DEL removes, and what gc removes of several.
    cnibox del --container-id "$id"
    podman rm --force --time 0 c1
    for container in c2 c3; do
        kill -KILL "$(podman inspect --format '{{.State.ConmonPid}}' "$container")" "$(podman inspect --format '{{.State.Pid}}' "$container")"
    done
    eventually not pidof httpd
    [[ $(cnibox gc | grep -c 'removed eth0') == 2 ]]
    nothing_is_left
    [[ ! -e /run/others ]]
}

test_a_plugin_of_a_third_party_is_chained() {
    local id
    make_their_plugin
    mkdir -p /etc/cni/net.d
    cat >/etc/cni/net.d/mynet.conflist <<-'JSON'
	{"cniVersion": "1.0.0", "name": "mynet", "plugins": [
	    {"type": "bridge", "bridge": "cnibox0", "isGateway": true, "ipMasq": true,
	     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.70.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
	    {"type": "portmap", "capabilities": {"portMappings": true}},
	    {"type": "theirs"}]}
	JSON
    podman network create --driver cnibox --opt network=mynet nb
    web c1 --network nb -p 8080:80
    serves 127.0.0.1:8080
    id=$(podman inspect --format '{{.Id}}' c1)
    grep -qx "ADD $id eth0 IgnoreUnknown=1;K8S_POD_NAME=c1" /run/theirs
    nsenter --net="$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' c1)" ip link show eth0 | grep -q 'alias theirs'
    podman rm --force --time 0 c1
    grep "^DEL $id eth0" /run/theirs
    nothing_is_left
}
