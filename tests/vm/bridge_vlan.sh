# The bridge's VLANs, which the development kernel does not have.

# network NAME FIRST KEYS: every network has the same subnet, of which it gives addresses from FIRST on. So what keeps
# two of them apart is nothing but the VLAN.
network() {
    printf '{"cniVersion": "1.1.0", "name": "%s", "type": "bridge", "bridge": "cni0", %s, "ipam": {"type": "host-local",
        "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.%s"}],
            [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::%s"}]]}}' "$1" "$3" "$2" "$2"
}

ten=$(network ten 10 '"vlan": 10')
twenty=$(network twenty 20 '"vlan": 20')
plain=$(network plain 90 '"mtu": 0')
# Networks with a gateway, which need subnets of their own.
ten_gateway='{"cniVersion": "1.1.0", "name": "ten", "type": "bridge", "bridge": "cni0", "vlan": 10, "mtu": 1400,
    "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "fd10::/64"}]]}}'
twenty_gateway='{"cniVersion": "1.1.0", "name": "twenty", "type": "bridge", "bridge": "cni0", "vlan": 20,
    "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}], [{"subnet": "fd20::/64"}]]}}'

# port_of CONTAINER: the host's end of its pair, as its ADD said.
port_of() {
    grep -o '"name": "veth[0-9a-f]*"' "$(result_of "$1")" | head -n 1 | cut -d '"' -f 4
}

ports_of() {
    ls "/sys/class/net/$1/brif" | wc -l
}

has_link() {
    test -e "/sys/class/net/$1"
}

# tagged CONTAINER VLAN ADDRESS/LEN ADDRESS6/LEN: an interface of the container's own that sends with a tag.
tagged() {
    at "$1" ip link add link eth0 name "eth0.$2" type vlan id "$2"
    add_address "$1" "eth0.$2" "$3"
    add_address "$1" "eth0.$2" "$4"
    at "$1" ip link set "eth0.$2" up
}

test_containers_reach_only_the_containers_of_their_vlan() {
    container c1 c2 c3 c4
    add bridge c1 "$ten"
    add bridge c2 "$ten"
    add bridge c3 "$twenty"
    add bridge c4 "$plain"
    reaches c1 10.1.0.11
    reaches c2 fd00:1::10
    for address in 10.1.0.20 fd00:1::20 10.1.0.90 fd00:1::90; do
        never_reaches c1 $address
    done
    never_reaches c4 10.1.0.20
    never_reaches c4 fd00:1::10
    check bridge c1 "$ten"
    check bridge c3 "$twenty"
    check bridge c4 "$plain"
}

test_nothing_of_the_default_vlan_comes_in_but_when_it_is_preserved() {
    container c1 c2 c3 c4
    add bridge c1 "$ten"
    add bridge c2 "$(network twenty 20 '"vlan": 20, "preserveDefaultVlan": true')"
    add bridge c3 "$plain"
    add bridge c4 "$(network trunk 30 '"vlanTrunk": [{"minID": 30, "maxID": 39}], "preserveDefaultVlan": true')"
    # A container that receives an ARP request for its address records the sender.
    not at c3 arping -q -c 2 -w 2 -I eth0 10.1.0.10
    not at c3 arping -q -c 2 -w 2 -I eth0 10.1.0.20
    not at c1 grep -q '^10\.1\.0\.90 ' /proc/net/arp
    at c2 grep -q '^10\.1\.0\.90 ' /proc/net/arp
    # The frames that it sends are in its VLAN.
    never_reaches c2 10.1.0.90
    # Without a VLAN of its own, a port that keeps the default one is as any other.
    reaches c4 10.1.0.90
    reaches c3 fd00:1::30
    check bridge c2 "$(network twenty 20 '"vlan": 20, "preserveDefaultVlan": true')"
    check bridge c4 "$(network trunk 30 '"vlanTrunk": [{"minID": 30, "maxID": 39}], "preserveDefaultVlan": true')"
    # The configuration says that it should not be there.
    expect_fail 999 CHECK bridge c2 "$twenty"
    said_contains 'VLANs 1 untagged, 20 PVID untagged'
    said_contains 'expected: 20 PVID untagged'
}

test_a_trunk_carries_its_vlans_with_tags_and_no_others() {
    local config
    config=$(network trunk 30 '"vlan": 30, "vlanTrunk": [{"minID": 9, "maxID": 11}, {"id": 21}]')
    container c1 c2 c3 c4
    add bridge c1 "$ten"
    add bridge c2 "$twenty"
    add bridge c3 "$(network thirty 31 '"vlan": 30')"
    add bridge c4 "$config"
    tagged c4 10 10.1.0.110/24 fd00:1::110/64
    tagged c4 20 10.2.0.120/24 fd00:2::120/64
    add_address c1 eth0 10.1.0.9/24
    add_address c2 eth0 10.2.0.9/24
    add_address c2 eth0 fd00:2::9/64
    at c4 ip addr flush dev eth0
    add_address c4 eth0 10.3.0.130/24
    add_address c3 eth0 10.3.0.9/24
    reaches c4 10.1.0.10
    reaches c4 fd00:1::10
    never_reaches c4 10.2.0.9
    never_reaches c4 fd00:2::9
    reaches c4 10.3.0.9
}

test_a_trunk_without_a_vlan_carries_nothing_without_a_tag() {
    local config
    config=$(network trunk 30 '"vlanTrunk": [{"id": 10}]')
    container c1 c2 c3
    add bridge c1 "$ten"
    add bridge c2 "$plain"
    add bridge c3 "$config"
    for address in 10.1.0.10 fd00:1::10 10.1.0.90 fd00:1::90; do
        never_reaches c3 $address
    done
    check bridge c3 "$config"
    at c3 ip addr flush dev eth0
    tagged c3 10 10.1.0.110/24 fd00:1::110/64
    reaches c3 10.1.0.10
    reaches c3 fd00:1::10
}

test_a_trunk_of_thousands_of_vlans() {
    local config ids
    ids=$(seq 2 2 4094 | sed 's/.*/{"id": &}/' | tr '\n' , | sed 's/,$//')
    config=$(network trunk 30 "\"vlanTrunk\": [$ids]")
    container c1 c2 c3
    add bridge c1 "$ten"
    add bridge c2 "$(network eleven 40 '"vlan": 11')"
    add bridge c3 "$config"
    check bridge c3 "$config"
    # Without the request for the last one.
    expect_fail 999 CHECK bridge c3 "$(network trunk 30 "\"vlanTrunk\": [${ids%,*}]")"
    said_contains 'expected: 2, 4, 6'
    at c3 ip addr flush dev eth0
    tagged c3 10 10.1.0.110/24 fd00:1::110/64
    reaches c3 10.1.0.10
    at c3 ip addr flush dev eth0.10
    tagged c3 11 10.1.0.110/24 fd00:1::110/64
    never_reaches c3 10.1.0.40
    config=$(network all 50 '"vlanTrunk": [{"minID": 1, "maxID": 4094}, {"minID": 7, "maxID": 9}, {"id": 8}]')
    ifname=net1 add bridge c3 "$config"
    ifname=net1 check bridge c3 "$config"
}

test_every_vlan_has_its_gateway() {
    local address
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    serve internet 80
    container c1 c2 c3
    add bridge c1 "$(with "$ten_gateway" '"ipMasq": true')"
    said_contains '"name": "cni0.10"'
    said_contains "\"mac\": \"$(cat /sys/class/net/cni0.10/address)\""
    add bridge c2 "$twenty_gateway"
    add bridge c3 "$(with "$ten_gateway" '"ipMasq": true')"
    same "10.10.0.1 fd10::1" "$(echo $(address_of host cni0.10) $(address_of host cni0.10 6))"
    same "10.20.0.1 fd20::1" "$(echo $(address_of host cni0.20) $(address_of host cni0.20 6))"
    same "" "$(address_of host cni0)$(address_of host cni0 6)" "the bridge has no address of its own"
    for address in 10.10.0.1 fd10::1 10.10.0.3 fd10::3 10.20.0.2 fd20::2; do
        reaches c1 $address
    done
    # From VLAN to VLAN goes by the host only.
    reaches c2 10.10.0.2
    echo 0 >/proc/sys/net/ipv4/ip_forward
    never_reaches c2 10.10.0.2
    echo 1 >/proc/sys/net/ipv4/ip_forward
    fetches c1 http://192.0.2.2/ internet
    fetches c3 'http://[2001:db8::2]/' internet
    same "192.0.2.1 2001:db8::1" "$(peers internet | xargs)"
    same 1400 "$(cat /sys/class/net/cni0.10/mtu)"
    same 0 "$(cat /proc/sys/net/ipv6/conf/cni0.10/accept_ra)"
    same 1 "$(cat /proc/sys/net/ipv6/conf/cni0.10/forwarding)"
    same 1 "$(cat /proc/sys/net/ipv4/conf/cni0.10/forwarding)"
    check bridge c1 "$(with "$ten_gateway" '"ipMasq": true')"
    check bridge c2 "$twenty_gateway"
}

test_the_gateway_goes_with_the_last_container_of_its_vlan() {
    container c1 c2 c3
    add bridge c3 "$twenty_gateway"
    remember
    add bridge c1 "$ten_gateway"
    add bridge c2 "$ten_gateway"
    same 5 "$(ports_of cni0)"
    del bridge c1 "$ten_gateway"
    reaches c2 10.10.0.1
    reaches c2 fd10::1
    del bridge c2 "$ten_gateway"
    nothing_changed
    same 2 "$(ports_of cni0)"
    reaches c3 10.20.0.1
    del bridge c3 "$twenty_gateway"
    same 0 "$(ports_of cni0)"
    not has_link cni0.20
    del bridge c3 "$twenty_gateway"
}

test_one_without_a_gateway_keeps_the_gateway_of_its_vlan() {
    local layer2='{"cniVersion": "1.1.0", "name": "l2", "type": "bridge", "bridge": "cni0", "vlan": 10}'
    local trunk='{"cniVersion": "1.1.0", "name": "trunk", "type": "bridge", "bridge": "cni0", "vlanTrunk": [{"minID": 2, "maxID": 11}]}'
    container c1 c2 c3
    add bridge c1 "$ten_gateway"
    add bridge c2 "$layer2"
    add bridge c3 "$trunk"
    del bridge c1 "$ten_gateway"
    has_link cni0.10
    del bridge c2 "$layer2"
    tagged c3 10 10.10.0.9/24 fd10::9/64
    reaches c3 10.10.0.1
    del bridge c3 "$trunk"
    not has_link cni0.10
}

test_an_uplink_in_the_vlan_does_not_keep_its_gateway() {
    # A bridge with the default VLAN 10, so that a cable that leads out of the host is in it.
    ip link add cni0 type bridge
    echo 10 >/sys/class/net/cni0/bridge/default_pvid
    echo 1 >/sys/class/net/cni0/bridge/vlan_filtering
    ip link add uplink type dummy
    ip link set uplink master cni0
    ip link set uplink up
    container c1
    add bridge c1 "$ten_gateway"
    reaches c1 10.10.0.1
    del bridge c1 "$ten_gateway"
    not has_link cni0.10
    same uplink "$(ls /sys/class/net/cni0/brif)"
}

test_another_default_vlan_of_the_bridge_is_as_good() {
    ip link add cni0 type bridge
    echo 10 >/sys/class/net/cni0/bridge/default_pvid
    echo 1 >/sys/class/net/cni0/bridge/vlan_filtering
    container c1 c2 c3
    add bridge c1 "$ten"
    add bridge c2 "$twenty"
    add bridge c3 "$plain"
    reaches c1 10.1.0.90
    never_reaches c1 10.1.0.20
    never_reaches c3 10.1.0.20
    check bridge c1 "$ten"
    check bridge c2 "$twenty"
}

test_the_gateway_that_the_reference_made_is_used_and_removed() {
    local index
    # As the reference leaves it; the default VLAN stands in for a tool that puts a port into one.
    ip link add cni0 type bridge
    echo 10 >/sys/class/net/cni0/bridge/default_pvid
    echo 1 >/sys/class/net/cni0/bridge/vlan_filtering
    ip link add name cni0.10 type veth
    ip link set veth0 name veth12345678
    ip link set veth12345678 master cni0
    ip link set veth12345678 up
    ip link set cni0.10 up
    ip addr add 10.10.0.1/24 dev cni0.10
    index=$(cat /sys/class/net/cni0.10/ifindex)
    container c1 c2
    add bridge c1 "$ten_gateway"
    add bridge c2 "$ten_gateway"
    same "$index" "$(cat /sys/class/net/cni0.10/ifindex)"
    reaches c1 10.10.0.1
    reaches c1 fd10::1
    check bridge c1 "$ten_gateway"
    del bridge c1 "$ten_gateway"
    del bridge c2 "$ten_gateway"
    not has_link cni0.10
    not has_link veth12345678
}

test_a_link_of_that_name_of_another_program_is_left_alone() {
    container c1
    ip link add cni0.10 type dummy
    ip link set cni0.10 up
    remember
    add bridge c1 "$ten_gateway"
    del bridge c1 "$ten_gateway"
    has_link cni0.10
    same "" "$(ls /sys/class/net/cni0/brif)"
}

test_a_gateway_is_mended_and_removed_after_its_bridge_was_removed() {
    container c1 c2
    add bridge c1 "$ten_gateway"
    ip link del cni0
    add bridge c2 "$ten_gateway"
    reaches c2 10.10.0.1
    reaches c2 fd10::1
    check bridge c2 "$ten_gateway"
    expect_fail 999 CHECK bridge c1 "$ten_gateway"
    ip link del cni0
    del bridge c1 "$ten_gateway"
    not has_link cni0.10
    del bridge c2 "$ten_gateway"
    same lo "$(ls /sys/class/net | xargs)"
}

test_del_without_the_namespace_removes_the_gateway() {
    container c1 c2
    add bridge c1 "$ten_gateway"
    destroy c1
    del bridge c1 "$ten_gateway"
    not has_link cni0.10
    add bridge c2 "$ten_gateway"
    destroy c2
    # With another VLAN than ADD had, even an invalid one.
    del bridge c2 "$(with "$ten_gateway" '"vlan": 4095, "vlanTrunk": [{"id": 5000}]')"
    not has_link cni0.10
    same "" "$(ls /sys/class/net/cni0/brif)"
    same "" "$(find /var/lib/cni/networks/ten -name '10.*')"
}

test_gc_removes_unused_gateways() {
    container c1 c2 c3
    add bridge c1 "$ten_gateway"
    add bridge c2 "$ten_gateway"
    add bridge c3 "$twenty_gateway"
    destroy c1
    gc bridge "$ten_gateway" c2
    has_link cni0.10
    reaches c2 10.10.0.1
    gc bridge "$ten_gateway"
    not has_link cni0.10
    has_link cni0.20
    destroy c3
    eventually not_port_of_c3
    # Of another network, and without a VLAN.
    gc bridge "$plain"
    not has_link cni0.20
}

not_port_of_c3() {
    ! has_link "$(port_of c3)"
}

test_a_failing_add_takes_its_gateway_back() {
    local bad without_ipam
    # Two objects under one key would be merged.
    without_ipam="${ten_gateway%%, \"ipam\"*}}"
    bad=$(with "$without_ipam" '"ipam": {"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "10.99.0.0/16", "gw": "192.168.7.7", "scope": 254}]}')
    container c1 c2
    remember
    expect_fail 999 ADD bridge c1 "$bad"
    nothing_changed
    add bridge c2 "$ten_gateway"
    remember
    expect_fail 999 ADD bridge c1 "$bad"
    nothing_changed
    reaches c2 10.10.0.1
    # A first address that does not suit what the gateway has.
    expect_fail 999 ADD bridge c1 "$(with "$without_ipam" '"ipam": {"type": "host-local", "subnet": "10.11.0.0/24"}')"
    said_contains 'already has an IP address different from 10.11.0.1/24'
    nothing_changed
    del bridge c2 "$ten_gateway"
    not has_link cni0.10
}

test_a_bridge_that_does_not_filter_is_refused() {
    container c1 c2
    add bridge c1 "$plain"
    remember
    for config in "$ten" "$(network trunk 30 '"vlanTrunk": [{"id": 10}]')" "$ten_gateway"; do
        expect_fail 7 ADD bridge c2 "$config"
        said_contains 'ip link set cni0 type bridge vlan_filtering 1'
        nothing_changed
        expect_fail 50 STATUS bridge '' "$config"
        said_contains 'bridge cni0'
    done
    echo 1 >/sys/class/net/cni0/bridge/vlan_filtering
    status bridge "$ten"
    add bridge c2 "$ten"
    never_reaches c2 10.1.0.90
    echo 0 >/sys/class/net/cni0/bridge/vlan_filtering
    reaches c2 10.1.0.90
    expect_fail 7 CHECK bridge c2 "$ten"
    said_contains 'VLAN filtering is off'
}

test_an_empty_trunk_only_makes_a_bridge_that_filters() {
    container c1 c2
    add bridge c1 "$(network trunk 30 '"vlanTrunk": []')"
    same 1 "$(cat /sys/class/net/cni0/bridge/vlan_filtering)"
    add bridge c2 "$plain"
    reaches c1 10.1.0.90
    check bridge c1 "$(network trunk 30 '"vlanTrunk": []')"
}

test_status_is_fine_where_the_kernel_filters_vlans() {
    status bridge "$ten"
    status bridge "$ten_gateway"
    same lo "$(ls /sys/class/net | xargs)" "STATUS makes nothing"
}

# disturbed COMMAND SAYS: CHECK of c1 fails after it, and says so.
disturbed() {
    container c1
    add bridge c1 "$ten_gateway"
    check bridge c1 "$ten_gateway"
    port=$(port_of c1)
    eval "$1"
    if call CHECK bridge c1 "$ten_gateway"; then fail "CHECK does not see: $1"; fi
    said_contains "$2"
    del bridge c1 "$ten_gateway"
    destroy c1
    ip link del cni0
    if has_link cni0.10; then ip link del cni0.10; fi
}

test_check_sees_what_was_changed() {
    local port
    disturbed 'ip link set $port nomaster; ip link set $port master cni0' 'VLANs 1 PVID untagged'
    disturbed 'ip link set $port nomaster' 'CNI veth created for bridge cni0 was not found'
    disturbed 'echo 0 >/sys/class/net/cni0/bridge/vlan_filtering' 'VLAN filtering is off'
    disturbed 'ip link del cni0.10' 'gateway link cni0.10 not found'
    disturbed 'ip link set cni0.10 down' 'gateway link cni0.10 is down'
    disturbed 'ip addr del 10.10.0.1/24 dev cni0.10' '10.10.0.1/24 is not on interface cni0.10'
    disturbed 'ip addr del fd10::1/64 dev cni0.10' 'fd10::1/64 is not on interface cni0.10'
    disturbed 'gateway_port nomaster; gateway_port master cni0' 'gateway link cni0.10 is not in its VLAN'
    disturbed 'gateway_port nomaster' 'gateway link cni0.10 is not in its VLAN'
    disturbed 'gateway_port down' 'gateway link cni0.10 is down'
}

# gateway_port WORDS: `ip link set` of the port that cni0.10 is the other end of.
gateway_port() {
    local index name
    index=$(cat /sys/class/net/cni0.10/iflink)
    name=$(basename "$(dirname "$(grep -lx "$index" /sys/class/net/*/ifindex)")")
    ip link set "$name" "$@"
}

test_isolated_ports_reach_their_gateway_and_not_each_other() {
    local config
    config=$(with "$ten_gateway" '"portIsolation": true')
    container c1 c2
    add bridge c1 "$config"
    add bridge c2 "$config"
    reaches c1 10.10.0.1
    reaches c2 fd10::1
    at c1 arping -q -c 1 -w 1 -I eth0 10.10.0.1
    not at c1 arping -q -c 2 -w 2 -I eth0 10.10.0.3
    check bridge c1 "$config"
}

test_eight_at_once_share_a_gateway() {
    local all='c1 c2 c3 c4 c5 c6 c7 c8' round c
    container $all
    remember
    for round in 1 2 3; do
        for c in $all; do (add bridge $c "$ten_gateway") & done
        wait_for_all
        same 9 "$(ports_of cni0)"
        for c in $all; do
            reaches $c 10.10.0.1
            check bridge $c "$ten_gateway"
        done
        for c in $all; do (del bridge $c "$ten_gateway") & done
        wait_for_all
        same 0 "$(ports_of cni0)"
        not has_link cni0.10
    done
    ip link del cni0
    nothing_changed
}

test_adds_and_dels_at_once_leave_every_container_its_gateway() {
    local round
    container c1 c2 c3 c4
    add bridge c1 "$ten_gateway"
    add bridge c2 "$ten_gateway"
    for round in 1 2 3 4 5 6; do
        (del bridge c1 "$ten_gateway") &
        (del bridge c2 "$ten_gateway") &
        (add bridge c3 "$ten_gateway") &
        (add bridge c4 "$ten_gateway") &
        wait_for_all
        reaches c3 10.10.0.1
        reaches c4 fd10::1
        same 3 "$(ports_of cni0)"
        (add bridge c1 "$ten_gateway") &
        (add bridge c2 "$ten_gateway") &
        (del bridge c3 "$ten_gateway") &
        (del bridge c4 "$ten_gateway") &
        wait_for_all
        reaches c1 10.10.0.1
        reaches c2 fd10::1
    done
}

# The jobs of the shell, each of which must have succeeded.
wait_for_all() {
    local job
    for job in $(jobs -p); do wait "$job"; done
}
